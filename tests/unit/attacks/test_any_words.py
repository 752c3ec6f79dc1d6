"""Fuzz tests of configurations, commands and annotations of runs (hypothesis)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddp_gui.auth import rights
from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.run import logs
from ddp_gui.runs import listing
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from trainers.contract import commands, events, rundir
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError
from trainers.contract.rundir import RunDirectory
from trainers.report.reporter import Reporter

ONE_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
# Includes values that Python's JSON accepts beyond the standard: NaN, integers of any size, lone surrogates.
numbers = st.one_of(st.integers(), st.integers(-(10**400), 10**400), st.floats())
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(), st.text(st.characters(), max_size=3)),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(st.text(max_size=9), inside, max_size=3)
    ),
    max_leaves=6,
)
fields = st.sampled_from([*config_module.settings(), "schema_version", "learning rate"])
DEEP = "[" * 100_000

# Text fields with a required format.
EXAMPLES = {
    "script": "folder/train.py",
    "script_arguments": "--lr 0.1 'two words'",
    "script_environment": "ONE=1\nTWO=two words",
    "script_python": "/usr/bin/python3",
    "script_folder": "/tmp",
    "start_from": "digits-cnn-1/300",
    "forward_address": "http://127.0.0.1:5000",
}


def outcome(action: Callable[[], Any], kind: type[ValueError]) -> Any:
    """Return the result of an action, or its error of the one type that it may raise."""
    try:
        return action()
    except kind as error:
        return error


def valid(name: str) -> st.SearchStrategy[Any]:
    """Return values that a field accepts."""
    about, (kind, is_optional) = config_module.settings()[name], config_module.type_of(name)
    optional = [st.none()] if is_optional else []
    if kind is bool:
        return st.booleans()
    if kind is str:
        if about.choices:
            return st.sampled_from(about.choices)
        if name == "data_reading":
            return st.sampled_from(
                ["", '{"header": true, "missing": {"a \\u00e4": ["-"]}}', '{"leave_out_last": 1}']
            )
        if name in EXAMPLES:
            return st.sampled_from(["", EXAMPLES[name]])
        letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
        return st.text(letters, max_size=min(about.max_length, 50))
    low = about.minimum if about.above is None else math.nextafter(about.above, math.inf)
    if kind is int:
        assert about.minimum is not None and about.maximum is not None
        return st.one_of(*optional, st.integers(int(about.minimum), int(about.maximum)))
    return st.one_of(*optional, st.floats(low, about.maximum, allow_nan=False))


@given(st.fixed_dictionaries({}, optional={name: valid(name) for name in config_module.settings()}))
def test_configuration_comes_back_from_its_own_json(raw: dict[str, Any]) -> None:
    config = config_module.parse(raw)
    assert config_module.parse(json.loads(json.dumps(config.to_json()))) == config


@settings(max_examples=100)
@given(st.one_of(values, st.dictionaries(st.one_of(fields, st.text()), values, max_size=5)))
@example({"a" * 10**6: 1, "seed": "9" * 10**6})
@example({str(number): number for number in range(5_000)})
@example({"seed": 10**400, "learning_rate": -(10**400), "batch_size": math.nan})
@example({"name": [[[[[[[[["x" * 10**6] * 100]]]]]]]]})
def test_any_value_is_a_configuration_or_an_error_that_names_fields(raw: Any) -> None:
    config = outcome(lambda: config_module.parse(raw), ConfigError)
    if isinstance(config, ConfigError):
        assert config.problems and len(str(config)) < 100_000
        for problem in config.problems:
            assert str(problem).endswith(f"allowed: {problem.allowed}.")
    else:
        assert isinstance(config, Config)
        json.dumps(config.to_json(), allow_nan=False)


@ONE_FIXTURE
@given(st.one_of(values.map(json.dumps), st.text(st.characters(exclude_characters="\n\r"))))
@example(DEEP)
@example('{"id": "x", "name": ["stop"]}')
@example('{"id": "x", "name": "set_lr", "learning_rate": ' + "9" * 400 + "}")
@example('{"id": {"deep": 1}, "name": "stop", "save": [1]}')
def test_any_line_of_commands_is_a_command_or_a_warning(tmp_path_factory: Any, line: str) -> None:
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    voice = Reporter(run)
    run.commands.write_bytes(line.encode("utf-8", errors="surrogatepass") + b"\n")
    run.append_command("pause")
    heard = []
    while (command := voice.poll_command()) is not None:
        heard.append(command)
    voice.close()
    assert heard and heard[-1].name == "pause", "the next one is heard"
    said = [event["code"] for event in events.read_all(run.events) if event["kind"] == "warning"]
    assert len(heard) == 2 or said == ["command_unreadable"] or not line.strip()
    assert all(command.name in commands.COMMAND_NAMES for command in heard)


@ONE_FIXTURE
@given(st.one_of(values.map(json.dumps), st.text(), st.just(DEEP)))
@example('{"name": 7, "tags": [[]], "note": {"a": 1}}')
@example('{"owner": ["ann"]}')
@example('{"dataset": {"name": "own"}, "counts": []}')
def test_any_words_on_a_run_are_read_or_left_out(run: RunDirectory, catalogue: Catalogue, text: str) -> None:  # noqa: F811
    for file in (listing.FILE, rights.OWNER_FILE, plan.DATA):
        (run.path / file).write_bytes(text.encode("utf-8", errors="surrogatepass"))
    read = listing.read_notes(run)
    assert listing.change_notes(listing.RunNotes(), name=read.name, tags=read.tags, note=read.note) == read
    assert rights.owner_of(run) is None or isinstance(rights.owner_of(run), str)
    known = plan.with_noted_data(run, catalogue)
    assert all(isinstance(dataset.num_train, int) for dataset in known.datasets.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_train", "x"), ("num_train", True), ("num_classes", -1), ("task", None), ("label", [])],
)
def test_noted_data_of_the_wrong_kind_is_left_out(
    run: RunDirectory,
    catalogue: Catalogue,  # noqa: F811
    field: str,
    value: Any,
) -> None:
    dataset = vars(next(iter(catalogue.datasets.values()))) | {"name": "own", "label": "Own"}
    noted = run.path / plan.DATA
    noted.write_text(json.dumps({"dataset": dataset, "counts": {}}))
    assert "own" in plan.with_noted_data(run, catalogue).datasets
    noted.write_text(json.dumps({"dataset": dataset | {field: value}, "counts": {}}))
    assert plan.with_noted_data(run, catalogue) is catalogue


@given(values, st.one_of(st.none(), values), st.one_of(st.none(), values))
def test_any_remark_fits_or_is_refused_by_name(name: Any, tags: Any, note: Any) -> None:
    changed = outcome(
        lambda: listing.change_notes(listing.RunNotes(), name=name, tags=tags, note=note), ValueError
    )
    if isinstance(changed, ValueError):
        assert str(changed).split()[0] in ("name", "tags", "note") and len(str(changed)) < 500
    else:
        assert len(changed.name) <= listing.MAX_NAME and len(changed.tags) <= listing.MAX_TAGS
        json.dumps(vars(changed)).encode()


@given(st.text(max_size=300), st.sampled_from(["", "digits", "../..", "."]))
def test_any_name_gives_an_id_that_is_a_folder_of_its_own(name: str, dataset: str) -> None:
    runs_dir = Path("/nowhere/runs")
    run_id = next(rundir.next_run_ids(runs_dir, Config(name=name, dataset=dataset), None))
    assert rundir.is_run_id(run_id)
    assert (runs_dir / run_id).parent == runs_dir and not run_id.startswith(".")


@given(st.one_of(st.text(), values))
@example("..")
@example(".")
@example("a/../b")
@example("a\0")
@example("x" * 10**6)
def test_no_text_but_an_id_opens_a_run(text: Any) -> None:
    with pytest.raises(ValueError, match="run_id is"):
        rundir.open_run(Path("/nowhere"), text)


@ONE_FIXTURE
@given(st.binary(max_size=500), st.text(max_size=20))
def test_any_log_can_be_searched(tmp_path: Path, content: bytes, words: str) -> None:
    log = tmp_path / "rank_0.log"
    log.write_bytes(content)
    found = logs.search(log, words)
    assert found["num_found"] == len(found["lines"]) <= content.count(b"\n") + 1
    json.dumps(found).encode()
    offset = logs.read(log, -1)["offset"]
    assert offset == len(content) and logs.read(log, offset)["text"] == ""
