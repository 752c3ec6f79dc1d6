"""Bundles JavaScript modules into one script, for files and notebooks, which cannot import modules."""

from __future__ import annotations

import posixpath
import re

from trainers.files.plain_files import ASSETS

SCRIPTS = ASSETS / "js"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def bundle(*entries: str) -> str:
    """Return modules and their imports as one script, in which each module keeps its own scope."""
    order: list[str] = []
    for entry in entries:
        _visit(entry, order)
    parts = []
    for name in order:
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        imports = "".join(
            f"const {{{names.replace(' as ', ': ')}}} = {variable(_resolve(name, path))};\n"
            for names, path in _IMPORT.findall(text)
        )
        exported = ", ".join(export for _, export in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1", _IMPORT.sub("", text))
        parts.append(f"const {variable(name)} = (() => {{\n{imports}{body}\nreturn {{ {exported} }};\n}})();")
    # "</" would end the script element.
    return "\n".join(parts).replace("</", "<\\/")


def _visit(name: str, order: list[str]) -> None:
    """Append a module to the order after its imports."""
    for _, path in _IMPORT.findall((SCRIPTS / name).read_text(encoding="utf-8")):
        imported = _resolve(name, path)
        if imported not in order:
            _visit(imported, order)
    if name not in order:
        order.append(name)


def _resolve(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def variable(name: str) -> str:
    """Return the variable of a bundle that holds a module's exports."""
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))
