"""What is wrong with the form, in words that begin with the field's label."""

from __future__ import annotations

import html
from collections.abc import Iterator

from ddp_gui.http.visible import as_html, visible
from ddp_gui.train import suggestion
from ddp_gui.train.form import Form
from trainers.contract.config import ConfigError, Problem

MAX_SHOWN = 60


def in_text(error: ConfigError, form: Form) -> str:
    """Return one line per problem."""
    return visible(
        "\n".join(f"{label}: {words}" if label else words for label, words, _ in _said(error, form))
    )


def in_html(error: ConfigError, form: Form) -> str:
    """Return a list of the problems; assets/js/train/problems.js marks the fields that it names."""
    lines = []
    for label, words, problem in _said(error, form):
        kind = "ddp-missing" if _is_missing(problem) else "ddp-wrong"
        name = html.escape(problem.field, quote=True)
        begin = f'<button type="button" data-go-to="{name}">{as_html(label)}</button>: ' if label else ""
        click = ""
        if problem.suggestion is not None:
            click = suggestion.button({problem.field: problem.suggestion}, f"Use {problem.suggestion:,}")
        lines.append(
            f'<li class="{kind}" data-field="{name}">{begin}<span>{as_html(words)}</span> {click}</li>'
        )
    return (
        '<div class="ddp-problems" role="group" aria-label="This cannot be started">'
        f"<ul>{''.join(lines)}</ul></div>"
    )


def _said(error: ConfigError, form: Form) -> Iterator[tuple[str, str, Problem]]:
    """Yield each problem's label, empty for a field that is not in the form, its words, and itself."""
    for problem in error.problems:
        label = str(getattr(form.controls.get(problem.field), "label", "") or "")
        yield label, _words(problem) if label else str(problem), problem


def _words(problem: Problem) -> str:
    if _is_missing(problem):
        return f"not filled in yet. It must be {problem.allowed}."
    value = str(problem.value)
    shown = value if len(value) <= MAX_SHOWN else value[: MAX_SHOWN - 1] + "…"
    if value[:1].isalpha():
        shown = f"“{shown}”"  # a sentence would begin with it in capitals
    return f"{shown} is not possible. It must be {problem.allowed}."


def _is_missing(problem: Problem) -> bool:
    return problem.value is None or str(problem.value).strip() == ""
