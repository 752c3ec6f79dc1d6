"""Fuzz tests (hypothesis): any data file, run file, configuration or command is read or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddp_gui.auth import rights
from ddp_gui.events import run_view
from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.run import logs
from ddp_gui.run.summary import summarise
from ddp_gui.runs import listing
from ddp_gui.runs.runs import status_values
from tests.fuzz import examples, targets
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from tests.unit.own_files import own_cache  # noqa: F401 - a fixture
from trainers.contract import commands, events, rundir
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.report.reporter import Reporter

ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
cells = st.one_of(
    st.sampled_from(
        ["", "1", "2.5", "x", "y", "1e999", "nan", "0x10", "\uff11", '"', '""', "=1+1", "2026-01-01"]
    ),
    st.text(max_size=8),
    st.floats().map(str),
)
tables = st.tuples(
    st.sampled_from([",", ";", "\t", "|"]),
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=30)
    ),
).map(lambda about: "\n".join(about[0].join(row) for row in about[1]).encode("utf-8", errors="surrogatepass"))


def damaged(whole: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return valid files with some bytes changed, removed or inserted."""

    def damage(raw: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
        for place, length, other in changes:
            at = int(place * len(raw))
            raw = raw[:at] + other + raw[at + length :]
        return raw

    one = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 4), st.binary(max_size=4))
    return st.builds(damage, st.sampled_from(whole), st.lists(one, min_size=1, max_size=4))


@ONCE
@given(
    st.one_of(st.binary(max_size=300), tables, damaged(examples.of("csv"))), st.sampled_from([".csv", ".tsv"])
)
@example(b'a,b\n"' + b"x,1\n" * 50, ".csv")
@example("a,b\n1,x\n".encode("utf-16"), ".csv")
@example(b"a,b\n\xff\xfe\n", ".csv")
@example(b"a,b\n1,\0\n", ".csv")
@example(b"\xef\xbb\xbfa,label\n" + b"1.5,x\n2.5,y\n" * 9, ".csv")
def test_any_table_is_read_or_refused(data: bytes, suffix: str) -> None:
    targets.read_data(data, suffix, skip_unreadable=len(data) % 2 == 0)


@ONCE
@given(
    st.one_of(
        st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
    )
)
@example(b"x" * 16)
@example("\U0010ffff".encode() * 20)
def test_any_text_is_read_or_refused(data: bytes) -> None:
    targets.read_data(data, ".txt", sequence_length=2)


@ONCE
@given(st.one_of(st.binary(max_size=300), damaged(examples.of("zip"))), st.booleans())
def test_any_zip_is_read_or_refused(data: bytes, skip: bool) -> None:
    targets.read_data(data, ".zip", skip_unreadable=skip)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=100), damaged(examples.images())))
def test_any_image_is_decoded_or_refused(data: bytes) -> None:
    targets.read_image(data)


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


def outcome(action: Callable[[], Any], kind: type[ValueError]) -> Any:
    """Return the result of an action, or its error of the one type that it may raise."""
    try:
        return action()
    except kind as error:
        return error


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
def test_any_words_on_a_run_are_read_or_left_out(run: RunDirectory, catalogue: Catalogue, text: str) -> None:
    for file in (listing.FILE, rights.OWNER_FILE, plan.DATA_FILE):
        (run.path / file).write_bytes(text.encode("utf-8", errors="surrogatepass"))
    read = listing.read_notes(run)
    assert listing.change_notes(listing.RunNotes(), name=read.name, tags=read.tags, note=read.note) == read
    assert rights.owner_of(run) is None or isinstance(rights.owner_of(run), str)
    known = plan.with_recorded_data(run, catalogue)
    assert all(isinstance(dataset.num_train, int) for dataset in known.datasets.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_train", "x"), ("num_train", True), ("num_classes", -1), ("task", None), ("label", [])],
)
def test_noted_wrong_data_is_left_out(
    run: RunDirectory, catalogue: Catalogue, field: str, value: Any
) -> None:
    dataset = vars(next(iter(catalogue.datasets.values()))) | {"name": "own", "label": "Own"}
    noted = run.path / plan.DATA_FILE
    noted.write_text(json.dumps({"dataset": dataset, "counts": {}}))
    assert "own" in plan.with_recorded_data(run, catalogue).datasets
    noted.write_text(json.dumps({"dataset": dataset | {field: value}, "counts": {}}))
    assert plan.with_recorded_data(run, catalogue) is catalogue


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


GOOD = [json.loads(line) for line in examples.event_lines().splitlines()]
FIELDS = sorted({*events.COMMON_FIELDS, *(name for names in events.FIELDS.values() for name in names)})
odd = st.one_of(
    values, st.sampled_from(["x", 7, -1, 2**63, 2**70, 1e308, [[]], {"a": {}}, "\ud800", "\u202e", True])
)
whole = st.sampled_from(GOOD)
altered = st.builds(
    lambda event, changes: event | changes, whole, st.dictionaries(st.sampled_from(FIELDS), odd, max_size=2)
)
missing = st.builds(
    lambda event, name: {k: v for k, v in event.items() if k != name}, whole, st.sampled_from(FIELDS)
)
lines = st.lists(st.one_of(whole, altered, missing, values).map(json.dumps), max_size=12)


def numbered(texts: list[str]) -> bytes:
    """Return the lines as the bytes of a file."""
    return "".join(text + "\n" for text in texts).encode()


@settings(max_examples=100)
@given(
    st.one_of(lines.map(numbered), st.binary(max_size=200), damaged([examples.event_lines()])),
    st.integers(0, 255),
)
@example(b"[" * 100_000 + b"\n", 255)
@example(b'{"seq":1,"time_unix_s":1,"kind":"step","step":1}\n' + examples.event_lines(), 255)
@example(examples.event_lines().replace(b'"step":2', b'"step":0'), 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"newer","inside":{"kind":"eval","step":3}}\n', 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"devices","devices":[{"rank":0,"kind":"step"}]}\n', 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"devices","devices":[{"rank":0,"kind":"plan"}]}\n', 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"step","step":1e400}\n' * 3, 9)
@pytest.mark.slow
def test_any_file_of_events_is_read_alike_and_shown(content: bytes, piece_bytes: int) -> None:
    targets.read_events(bytes([piece_bytes]) + content)


@settings(max_examples=200)
@given(
    st.one_of(
        st.builds(
            lambda number, content: bytes([number]) + content,
            st.integers(0, len(targets.CONTRACT_FILES) - 1),
            st.one_of(values.map(json.dumps).map(str.encode), st.binary()),
        ),
        damaged(examples.contract_files()),
    )
)
@example(b"\0" + b"[" * 100_000)
@example(b'\6{"format_version": 2, "files": {"../x": {}}}')
def test_any_file_of_a_run_is_read_or_refused_in_words(content: bytes) -> None:
    targets.read_contract(content)


own_fields = st.dictionaries(st.text(), values, max_size=3).map(
    lambda fields: {name: value for name, value in fields.items() if name not in events.COMMON_FIELDS}
)
batches = st.lists(st.tuples(st.floats(0, 1e10), st.just("newer"), own_fields), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches)
def test_what_is_appended_is_one_line_each_and_comes_back(tmp_path: Path, batch: list[Any]) -> None:
    path = tmp_path / "events.jsonl"
    path.unlink(missing_ok=True)
    file = EventFile(path)
    file.append(batch)
    file.close()
    assert [event["seq"] for event in events.read_all(path)] == list(range(len(batch)))
    assert EventFile(path).next_seq == len(batch)


HOSTILE = {
    "status.json": [
        '{"state": "running", "error": "\\ud800"}',
        "[" * 100_000,
        '{"state": "finished", "error": {"a": 1}, "pid": "x"}',
    ],
    "config.json": ["[" * 100_000, '{"nproc_per_node": 1e400}', "null", '{"schema_version": [1]}'],
    "notes.json": ["[" * 100_000, '{"name": "\\ud800", "tags": 7}', "null"],
    "owner.json": ["[" * 100_000, '{"owner": "\\ud800"}', "7"],
    "data.json": ["[" * 100_000, '{"dataset": 7}', "null"],
    "events.jsonl": [
        "[" * 100_000 + "\n",
        '{"seq":0,"time_unix_s":1,"kind":"plan","num_steps":1e30,"num_train":1}\n',
        '{"seq":0,"time_unix_s":1,"kind":"step","step":99999999999999999999,"epoch":0,"loss":"x"}\n',
        '{"seq":0,"time_unix_s":1,"kind":"devices","devices":7}\n',
        "x" * 1_000_000 + "\n",
    ],
}


@pytest.mark.parametrize("file", HOSTILE)
def test_a_damaged_run_says_why_others_are_listed(tmp_path: Path, catalogue: Catalogue, file: str) -> None:
    store = store_of(tmp_path / "runs", catalogue)
    good = make_run(store.runs_dir)
    for text in HOSTILE[file]:
        bad = make_run(store.runs_dir)
        (bad.path / file).write_bytes(text.encode("utf-8", errors="surrogatepass"))
    rows = {row["run_id"]: row for row in store.rows()}
    assert len(orjson.dumps(list(rows.values()))) < 50_000
    assert len(rows) == 1 + len(HOSTILE[file]) and rows[good.run_id]["state"] == "stopped"
    for run_id, row in rows.items():
        if row["error"] and row["error"].startswith("This run cannot be read"):
            continue
        view = store.view(run_id)
        view.catch_up()
        assert run_view.encode_message(run_view.message_for(view, -1))
        assert orjson.dumps(summarise(view, store)) and orjson.dumps(status_values(view))
