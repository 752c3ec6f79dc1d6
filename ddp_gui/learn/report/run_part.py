"""A run in a report: its configuration and command, what came of it, and the hash of its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ddp_gui.learn.report import number_words, pictures
from ddp_gui.learn.report.markup import Html, joined, name_of, tag
from ddp_gui.learn.report.measured import Hashed, Measured

_BROKEN = "broken on purpose"
# Of a note or a message: what a run wrote itself may have any length, and a report must not.
_MAX_WORDS = 2_000


def drawn(run: Measured) -> Html:
    """Return a run as an article."""
    about = run.about
    run_id = about["run_id"]
    heading = f"run-{run_id}"
    return tag(
        "article",
        tag(
            "header",
            tag("h3", name_of(about["name"]), id=heading),
            tag("span", about["state"], class_="state", data_state=about["state"]),
            tag("span", _BROKEN, class_="state", data_state="broken") if _is_broken(about) else None,
        ),
        tag("p", _words(run), class_="soft"),
        _verdict(run),
        _remarks(run),
        _numbers(run),
        tag("h4", "What differs from the defaults"),
        _changes(about["fields"]),
        tag("details", tag("summary", "The whole configuration"), _configuration(about["fields"])),
        tag("h4", "The command that trains the same"),
        tag("pre", tag("code", about["command"])),
        tag("p", _hash_words(run), class_="hash"),
        class_="card run",
        aria_labelledby=heading,
    )


def hash_line(run: Measured, hashed: Hashed) -> str:
    """Return a line that `sha256sum --check` reads, beside the folders of the runs."""
    return f"{hashed.sha256}  {run.about['run_id']}/events.jsonl"


def _is_broken(about: Mapping[str, Any]) -> bool:
    return about["mistake"] not in ("none", "", None)


def _words(run: Measured) -> Html:
    about = run.about
    model, dataset, strategy = about["labels"]
    num_ranks = about["num_ranks"]
    ranks = f"{num_ranks} rank" + ("" if num_ranks == 1 else "s")
    began = run.series.newest_unix_s
    when = number_words.moment(about["created_unix_s"] if began is None else began - run.series.active_s())
    tags = [joined([" · ", name_of(each)]) for each in about["tags"]]
    return joined(
        [f"{about['run_id']} · {model} on ", name_of(dataset), f" · {strategy}, {ranks} · {when}", *tags]
    )


def _verdict(run: Measured) -> Html | None:
    if run.verdict is None:
        return None
    return tag("p", tag("strong", run.verdict.title), " ", run.verdict.reason)


def _remarks(run: Measured) -> Html | None:
    problem = run.series.problem.get("message") or run.about["error"]
    remarks = [tag("li", tag("strong", "It failed: "), _cut(problem))] if problem else []
    if _is_broken(run.about):
        words = f"{_BROKEN.capitalize()}: the configuration has the mistake "
        remarks.append(tag("li", words, tag("code", run.about["mistake"]), "."))
    remarks += [tag("li", _cut(words)) for words in run.warnings]
    if run.about["note"]:
        remarks.append(tag("li", "Note: ", tag("bdi", _cut(run.about["note"]), class_="note")))
    return tag("ul", remarks, class_="remarks") if remarks else None


def _cut(words: object) -> str:
    text = str(words)
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]} …"


def _numbers(run: Measured) -> Html:
    best = run.series.evaluations.best
    pairs = [(title, words(run, run)) for name, (title, words) in pictures.ROWS.items() if name != "speed_up"]
    if best:
        value = number_words.metric(best["name"], best["value"])
        pairs.insert(2, ("Best validation", f"{value} at step {number_words.count(best['step'])}"))
    pairs.append(("Trained on", _devices(run)))
    return tag(
        "dl", [tag("div", tag("dt", title), tag("dd", words)) for title, words in pairs], class_="facts"
    )


def _devices(run: Measured) -> str:
    """Say what the ranks ran on, as the run's events have it."""
    seen: dict[str, int] = {}
    for device in run.devices:
        name = str(device.get("name") or ("GPU" if device.get("kind") == "cuda" else "CPU"))
        memory = number_words.size(device.get("memory_total_bytes"))
        words = (
            f"{name}, {memory}" if device.get("kind") == "cuda" and memory != number_words.UNKNOWN else name
        )
        host = device.get("host")
        words = f"{words} ({host})" if host else words
        seen[words] = seen.get(words, 0) + 1
    if not seen:
        return "not recorded"
    return "; ".join(
        f"{number} rank{'' if number == 1 else 's'} on {words}" for words, number in seen.items()
    )


def _changes(fields: Sequence[Mapping[str, Any]]) -> Html:
    changed = [field for field in fields if not field["is_default"]]
    if not changed:
        return tag("p", "Nothing: all fields have their defaults.", class_="soft")
    return tag(
        "ul",
        [tag("li", field["label"], " ", tag("b", _value(field["value"]))) for field in changed],
        class_="changes",
    )


def _configuration(fields: Sequence[Mapping[str, Any]]) -> Html:
    parts = []
    for topic, group in groupby(fields, key=lambda field: field["topic"]):
        rows = [
            tag(
                "div",
                tag("dt", field["label"], " ", tag("code", field["field"])),
                tag("dd", _value(field["value"])),
                data_changed=not field["is_default"],
            )
            for field in group
        ]
        parts.append(tag("section", tag("h5", topic), tag("dl", rows)))
    return tag("div", parts, class_="configuration")


def _value(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return number_words.count(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _hash_words(run: Measured) -> Html:
    if run.hashed is None:
        return joined("It has no events yet.")
    went_on = " that there were, while it went on" if run.is_live else ""
    return joined(
        [
            f"SHA-256 of the {run.hashed.num_bytes:,} bytes of events.jsonl{went_on}: ",
            tag("code", run.hashed.sha256),
        ]
    )
