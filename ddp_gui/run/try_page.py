"""try.html: one file that contains a model and runs offline in any browser.

onnxruntime-web runs the model; the file contains the scripts of the card "Try it".
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddp_gui.http.bundle import bundle
from ddp_gui.http.shell import visible
from trainers.files.plain_files import ASSETS

ENTRY = "run/try/file.js"
STYLES = ("shared/colours", "shared/base", "shared/controls", "run/sample", "run/try")
RUNTIME = ASSETS / "vendor" / "onnxruntime-web"
MAX_BYTES = 25 * 10**6

_FONT = re.compile(r"@font-face \{[^}]*\}\n")


class NoPageError(ValueError):
    """A model cannot be exported as a page; the message states the reason."""


def try_page(title: str, metadata: Mapping[str, Any], model: Path) -> bytes:
    """Return the content of the file.

    Args:
        metadata: the description of the model.
        model: the ONNX file.

    Raises:
        NoPageError: if the model needs a pretrained model's tokenizer, or the file would be too large.
    """
    if metadata["input"].get("tokenizer", {}).get("kind") == "pretrained":
        raise NoPageError("the tokenizer of a pretrained model does not run in a browser")
    # Escape "<", which could end the element.
    description = json.dumps(metadata).replace("<", "\\u003c")
    compressed = {
        "model": gzip.compress(model.read_bytes(), mtime=0),
        "runtime": (RUNTIME / "ort.wasm.bundle.min.mjs.gz").read_bytes(),
        "runtime-wasm": (RUNTIME / "ort-wasm-simd-threaded.wasm.gz").read_bytes(),
    }
    scripts = "\n".join(
        f'<script type="text/plain" id="{name}">{base64.b64encode(content).decode("ascii")}</script>'
        for name, content in compressed.items()
    )
    shown_title = html.escape(visible(title))
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{shown_title}</title>
<style>
{read_styles(STYLES)}
body {{ margin: 0; background: var(--ddp-ground); }}
main {{ max-width: 76rem; margin: 0 auto; padding: 1.2rem; }}
</style>
<script>
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark");
</script>
</head>
<body>
<main class="ddp">
<h1>{shown_title}</h1>
<p class="ddp-caption">This file contains a trained model and runs it in your browser, without a network.</p>
<section class="ddp-card" id="try" aria-label="Try it"></section>
<p class="ddp-hint">Runs with ONNX Runtime Web (Microsoft, MIT licence).</p>
</main>
<script type="application/json" id="about">{description}</script>
{scripts}
<script type="module">
{bundle(ENTRY)}
</script>
</body>
</html>
"""
    content = page.encode()
    if len(content) > MAX_BYTES:
        raise NoPageError(f"it would have {len(content) / 1e6:.0f} MB; the limit is {MAX_BYTES // 10**6} MB")
    return content


def read_styles(names: Iterable[str]) -> str:
    """Return style sheets as one text, without the typeface, which is a file."""
    styles = "\n".join((ASSETS / "css" / f"{name}.css").read_text(encoding="utf-8") for name in names)
    return _FONT.sub("", styles)
