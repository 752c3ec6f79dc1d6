"""Write the table of configuration fields in docs/configuration.md from their definitions.

python -m tools.config_table
"""

from __future__ import annotations

from pathlib import Path

from trainers import registry
from trainers.contract import config
from trainers.plugins import catalog

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN = "<!-- made by tools/config_table.py: begin -->"
END = "<!-- made by tools/config_table.py: end -->"


def table() -> str:
    """Return the Markdown table of all fields."""
    registry.discover_all()
    rows = ["| field | default | allowed | description |", "|---|---|---|---|"]
    defaults = config.default_values()
    for name, setting in config.settings().items():
        allowed = (
            f"a name of the catalogue's {setting.catalog}" if setting.catalog else config.allowed_text(name)
        ).replace("a whole number", "an integer")
        rows.append(f"| `{name}` | `{defaults[name]!r}` | {allowed} | {setting.help}{_only(name, setting)} |")
    return "\n".join(rows)


def _only(name: str, setting: config.Setting) -> str:
    users = (
        *(strategy.name for strategy in catalog.ordered_strategies() if name in strategy.options),
        *(model.name for model in registry.models().values() if name in model.options),
    )
    only_with = (setting.by_plugin, users) if setting.by_plugin else setting.only_with
    if only_with is None:
        return ""
    other, values = only_with
    return f" Only with `{other}` {' or '.join(values)}."


def render(page: str) -> str:
    """Return the page with the current table between its two marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
