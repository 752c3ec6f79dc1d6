"""Serve a Gradio app with nothing in it: what any Gradio page costs a server that does nothing.

python -m benchmarks.empty_gradio PORT
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Serve until the process is ended."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    import gradio as gr

    with gr.Blocks(analytics_enabled=False) as demo:
        pass
    demo.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]), quiet=True, show_error=False)


if __name__ == "__main__":
    main()
