"""try.html: one file with a model inside, which runs offline in any browser.

onnxruntime-web runs the model; the scripts of the card "Try it" are packed into the file.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddp_gui.http.shell import visible
from trainers.files.plain_files import ASSETS

SCRIPTS = ASSETS / "js"
ENTRY = "run/try/file.js"
STYLES = ("shared/colours", "shared/base", "shared/controls", "run/sample", "run/try")
RUNTIME = ASSETS / "vendor" / "onnxruntime-web"
MAX_BYTES = 25 * 10**6

_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_FONT = re.compile(r"@font-face \{[^}]*\}\n")


class NoPageError(ValueError):
    """A model cannot be a page of its own; the message says why."""


def try_page(title: str, about: Mapping[str, Any], model: Path) -> bytes:
    """Return the file.

    Args:
        about: the description of the model.
        model: the ONNX file.

    Raises:
        NoPageError: if the model needs a pretrained model's tokenizer, or the file would be too large.
    """
    if about["input"].get("tokenizer", {}).get("kind") == "pretrained":
        raise NoPageError("the tokenizer of a pretrained model does not run in a browser")
    # "<" would end the element that holds the text.
    description = json.dumps(about).replace("<", "\\u003c")
    packed = {
        "model": gzip.compress(model.read_bytes(), mtime=0),
        "runtime": (RUNTIME / "ort.wasm.bundle.min.mjs.gz").read_bytes(),
        "runtime-wasm": (RUNTIME / "ort-wasm-simd-threaded.wasm.gz").read_bytes(),
    }
    held = "\n".join(
        f'<script type="text/plain" id="{name}">{base64.b64encode(content).decode("ascii")}</script>'
        for name, content in packed.items()
    )
    shown = html.escape(visible(title))
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{shown}</title>
<style>
{styles_of(STYLES)}
body {{ margin: 0; background: var(--ddp-ground); }}
main {{ max-width: 76rem; margin: 0 auto; padding: 1.2rem; }}
</style>
<script>
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark");
</script>
</head>
<body>
<main class="ddp">
<h1>{shown}</h1>
<p class="ddp-caption">This file contains a trained model and runs it in your browser, without a network.</p>
<section class="ddp-card" id="try" aria-label="Try it"></section>
<p class="ddp-hint">Runs with ONNX Runtime Web (Microsoft, MIT licence).</p>
</main>
<script type="application/json" id="about">{description}</script>
{held}
<script type="module">
{bundle(ENTRY)}
</script>
</body>
</html>
"""
    content = page.encode()
    if len(content) > MAX_BYTES:
        raise NoPageError(f"it would have {len(content) / 1e6:.0f} MB; {MAX_BYTES // 10**6} MB are the most")
    return content


def styles_of(names: Iterable[str]) -> str:
    """Return style sheets as one text, without the typeface, which is a file."""
    styles = "\n".join((ASSETS / "css" / f"{name}.css").read_text(encoding="utf-8") for name in names)
    return _FONT.sub("", styles)


def bundle(entry: str) -> str:
    """Return a module and all that it imports as one script; each keeps its own scope."""
    order: list[str] = []
    _visit(entry, order)
    parts = []
    for name in order:
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        imports = "".join(
            f"const {{{names.replace(' as ', ': ')}}} = {variable(_resolve(name, path))};\n"
            for names, path in _IMPORT.findall(text)
        )
        exported = ", ".join(found for _, found in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1", _IMPORT.sub("", text))
        parts.append(f"const {variable(name)} = (() => {{\n{imports}{body}\nreturn {{ {exported} }};\n}})();")
    # "</" would end the script element.
    return "\n".join(parts).replace("</", "<\\/")


def _visit(name: str, order: list[str]) -> None:
    """Append a module to the order after all that it imports."""
    for _, path in _IMPORT.findall((SCRIPTS / name).read_text(encoding="utf-8")):
        imported = _resolve(name, path)
        if imported not in order:
            _visit(imported, order)
    if name not in order:
        order.append(name)


def _resolve(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def variable(name: str) -> str:
    """Return the variable of a bundle that holds what a module exports."""
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))
