"""The command `rankscope`, which opens the page or runs another program by its short name.

`uvx --from WHEEL rankscope` runs it without installing it.
"""

from __future__ import annotations

import runpy
import sys

import rankscope


def main() -> None:
    """Run the command line."""
    rankscope.add_to_path()
    from trainers.files import installation

    modules = {name: module for module, name in installation.COMMANDS.items()}
    if (name := sys.argv[1] if len(sys.argv) > 1 else "") in modules:
        sys.argv[:2] = [f"{sys.argv[0]} {name}"]
        runpy.run_module(modules[name], run_name="__main__", alter_sys=False)
        return
    if name == "start":
        from rankscope import first_start

        sys.exit(first_start.main(sys.argv[2:]))
    if name == "add-to-menu":
        from rankscope import menu

        sys.exit(menu.main(sys.argv[2:]))
    import app

    app.main()


if __name__ == "__main__":
    main()
