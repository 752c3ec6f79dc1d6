"""Tests of runs as zips: packed, imported, compared with their hashes; hostile zips are refused."""

from __future__ import annotations

import io
import json
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.auth import rights
from ddp_gui.auth.rights import DataAccess, Person
from ddp_gui.gradio_routes.uploads import Uploads
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs import imports, listing, run_zip
from ddp_gui.runs.imports import ImportApi
from ddp_gui.runs.runs import RunStore
from tests.made_run import make_finished
from tests.unit.checkpoints import leave_checkpoint
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract.rundir import RunDirectory

ANN, BOB, TEACHER = Person("ann", "student"), Person("bob", "student"), Person("jane", "teacher")
Files = dict[str, bytes]
Edit = Callable[[Files], None]


@pytest.fixture
def there(tmp_path: Path) -> RunDirectory:
    """Return a run of another machine, with code, a log, a checkpoint and files that stay there."""
    run = RunDirectory(tmp_path / "there" / "digits-mlp-7")
    make_finished(run, 60)
    run.rank_log(0).write_text("step 1\n")
    (run.path / "code").mkdir()
    (run.path / "code" / "train.py").write_text("raise SystemExit('it was run')\n")
    (run.path / "notes.json").write_text(json.dumps({"name": "Mine", "tags": ["home"], "note": ""}))
    (run.path / "owner.json").write_text(json.dumps({"owner": "jane"}))
    (run.path / "commands.jsonl").write_text('{"id": "1", "time_unix_s": 1.0, "name": "stop"}\n')
    leave_checkpoint(run, 20)
    leave_checkpoint(run, 40)
    return run


def zipped(files: Files) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return whole.getvalue()


def files_of(run: RunDirectory, *, with_checkpoint: bool = False) -> Files:
    content = b"".join(run_zip.pack(run, with_checkpoint=with_checkpoint))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def unpacked(tmp_path: Path, content: bytes) -> tuple[RunDirectory, listing.Imported]:
    source, folder = tmp_path / "sent.zip", tmp_path / "folder"
    source.write_bytes(content)
    folder.mkdir()
    return RunDirectory(folder), run_zip.unpack(source, folder)


class Page:
    """A page with the list of runs and uploads of users."""

    def __init__(self, tmp_path: Path, catalogue: Catalogue) -> None:
        self.store: RunStore = store_of(tmp_path / "runs", catalogue)
        self.uploads = Uploads(tmp_path / "uploads", DataAccess(tmp_path / "uploads"))
        self.api = ImportApi(self.store, self.uploads, lambda _person: None)
        self.app = FastAPI()
        self.app.include_router(imports.make_router(self.store))

    def send(self, content: bytes, person: Person, name: str = "sent.zip") -> dict[str, Any]:
        with rights.acting_as(person):
            with self.uploads.make_upload_folder(len(content)) as place:
                (place / name).write_bytes(content)
            answer: dict[str, Any] = self.api.import_run(str(place / name))
        assert not place.exists(), "the upload is deleted"
        return answer


@pytest.fixture
def page(tmp_path: Path, catalogue: Catalogue) -> Page:
    return Page(tmp_path, catalogue)


def test_a_run_goes_out_and_comes_in(page: Page, there: RunDirectory, tmp_path: Path) -> None:
    here = tmp_path / "runs" / there.run_id
    here.parent.mkdir()
    there.path.rename(here)
    packed = TestClient(page.app).get(f"/live/runs/{there.run_id}/run.zip?checkpoint=true")
    assert packed.headers["Content-Disposition"] == 'attachment; filename="digits-mlp-7-run.zip"'
    here.rename(there.path)

    answer = page.send(packed.content, ANN)
    assert answer["run_id"] == "digits-mlp-7", "its original id is free"
    assert answer["message"] == "Imported as digits-mlp-7: all files as recorded."
    assert answer["imported"]["origin"] == "digits-mlp-7" and answer["imported"]["differences"] == []
    assert page.send(packed.content, BOB)["run_id"] not in ("digits-mlp-7", "")

    with rights.acting_as(TEACHER):
        rows = {row["owner"]: row for row in page.store.rows()}
        view = page.store.view("digits-mlp-7")
    assert rows.keys() == {"ann", "bob"}, "who imported it owns it, whatever the zip says"
    row = rows["ann"]
    assert (row["name"], row["tags"], row["state"]) == ("Mine", ["handed in", "home"], "finished")
    assert row["imported"]["result"] == "as recorded" and row["step"] == 60
    assert [item["step"] for item in view.checkpoints()] == [40], "only the latest checkpoint"
    run = RunDirectory(here)
    assert run.events.read_bytes() == there.events.read_bytes()
    assert (run.path / "code" / "train.py").read_bytes() == (there.path / "code" / "train.py").read_bytes()
    assert not run.commands.exists()
    assert "handle" not in json.loads(run.status.read_text()) or (
        json.loads(run.status.read_text())["handle"] is None
    )
    with pytest.raises(ValueError, match="imported runs cannot be resumed"):
        imports.refuse_to_continue(run)
    imports.refuse_to_continue(there)


def test_a_run_that_one_may_not_see_is_not_packed(page: Page, there: RunDirectory, tmp_path: Path) -> None:
    first = page.send(zipped(files_of(there)), ANN)
    assert first["run_id"] == there.run_id
    page.store.class_settings.change(everyone_sees=False)
    with rights.acting_as(BOB):
        answer = TestClient(page.app).get(f"/live/runs/{there.run_id}/run.zip")
    assert answer.status_code == 404
    assert page.send(zipped(files_of(there)), BOB)["run_id"].endswith("-bob"), (
        "ids tell nothing about hidden runs"
    )


def test_another_users_upload_cannot_be_imported(page: Page, there: RunDirectory) -> None:
    with rights.acting_as(ANN), page.uploads.make_upload_folder(10) as place:
        (place / "mine.zip").write_bytes(zipped(files_of(there)))
    for path in (str(place / "mine.zip"), "/etc/passwd", str(place / "../../x.zip")):
        with rights.acting_as(BOB), pytest.raises(ValueError, match="was not uploaded"):
            page.api.import_run(path)
    assert (place / "mine.zip").exists()


def test_differences_from_the_hashes_are_named(there: RunDirectory, tmp_path: Path) -> None:
    files = files_of(there)
    files["events.jsonl"] = files["events.jsonl"].replace(b'"loss":', b'"loss": ', 1)
    files["code/more.py"] = b""
    del files["logs/rank_0.log"]
    _, imported = unpacked(tmp_path, zipped(files))
    assert imported.result == "differs" and imported.num_differences == 3
    assert imported.differences == (
        "code/more.py is not recorded",
        "events.jsonl differs",
        "logs/rank_0.log is missing",
    )
    assert imported.result_text == "3 files differ"


def test_a_folder_zipped_by_hand_has_no_hashes(there: RunDirectory, tmp_path: Path) -> None:
    whole = {
        f"run/{path.relative_to(there.path)}": path.read_bytes()
        for path in there.path.rglob("*")
        if path.is_file()
    }
    run, imported = unpacked(
        tmp_path, zipped(whole | {"__MACOSX/run/._config.json": b"", "run/.DS_Store": b""})
    )
    assert (imported.result, imported.origin) == ("no hashes", "sent")
    assert len(run.list_checkpoints()) == 2
    names = {path.name for path in run.path.iterdir()}
    assert names.isdisjoint({"owner.json", "commands.jsonl", "hashes.json", "__MACOSX", ".DS_Store"})


def test_an_imported_configuration_names_no_file_of_this_machine(there: RunDirectory, tmp_path: Path) -> None:
    files = files_of(there)
    secret = {"dataset": "own", "data_path": "/home/jane/grades.csv", "label_column": "grade"}
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | secret).encode()
    run, _ = unpacked(tmp_path, zipped(files))
    assert run.read_config().data_path == "/dev/null/grades.csv"


@pytest.mark.parametrize("state", ["running", "queued", "lost"])
def test_a_live_run_of_another_engine_has_ended_here(there: RunDirectory, tmp_path: Path, state: str) -> None:
    files = files_of(there)
    recorded = {"state": state, "engine": "slurm", "handle": {"job_id": "12"}}
    files["status.json"] = json.dumps(recorded).encode()
    run, _ = unpacked(tmp_path, zipped(files))
    status = json.loads(run.status.read_text())
    assert (status["engine"], status["handle"]) == ("local", None)
    assert status["state"] == "lost"


def changed(name: str, content: bytes | None) -> Edit:
    def edit(files: Files) -> None:
        if content is None:
            del files[name]
        else:
            files[name] = content

    return edit


EVENT = b'{"seq":1,"time_unix_s":1.0,"kind":"step","step":1,"epoch":0,"loss":1.0}\n'


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (changed("../config.json", b"{}"), "the files of one run"),
        (changed("/etc/cron.d/run", b"x"), "the files of one run"),
        (changed("work/../../x.py", b""), "the files of one run"),
        (changed("logs/.hidden.log", b""), "the files of one run"),
        (changed("checkpoints/step_1/../../x", b""), "the files of one run"),
        (changed("setup.py", b""), "the files of one run"),
        (changed("code/a/b.py/c.py", b"") , ""),
        (changed("config.json", None), "no config.json"),
        (changed("events.jsonl", None), "no events.jsonl"),
        (changed("config.json", b"{"), "config.json is not JSON"),
        (changed("config.json", b'{"schema_version": 99}'), "schema"),
        (changed("config.json", b'{"batch_size": 1' + b"0" * 400 + b"}"), "batch_size|not JSON"),
        (changed("events.jsonl", b""), "no event"),
        (changed("events.jsonl", EVENT + b"\x80\x00 not an event\n"), " that are not events"),
        (changed("events.jsonl", EVENT.replace(b":1.0}", b":1e999,\"seq\":-1}")), " that are not events"),
        (changed("events.jsonl", b'{"a":' * 10_000 + b"\n"), " that are not events"),
        (changed("hashes.json", b'{"run_id": 7}'), "hashes.json in the zip is damaged"),
        (changed("hashes.json", b" " * (5 * 2**20)), "more than 4 MiB"),
        (changed("logs/bomb.log", bytes(64 * 2**20)), "-fold when unpacked"),
    ],
)  # fmt: skip
def test_a_hostile_zip_is_refused(there: RunDirectory, tmp_path: Path, edit: Edit, message: str) -> None:
    files = files_of(there)
    edit(files)
    if not message:
        files["code/a/b.py"] = b""
        message = "a file and a folder of the same name"
    with pytest.raises(ValueError, match=message):
        unpacked(tmp_path, zipped(files))
    outside = {path.name for path in tmp_path.iterdir()}
    assert outside == {"there", "sent.zip", "folder"}, "nothing was written elsewhere"


def test_links_duplicates_and_other_formats_are_refused(there: RunDirectory, tmp_path: Path) -> None:
    files = files_of(there)
    link = zipfile.ZipInfo("logs/rank_1.log")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    pipe = zipfile.ZipInfo("logs/rank_1.log")
    pipe.external_attr = (stat.S_IFIFO | 0o600) << 16
    slow = zipfile.ZipInfo("logs/rank_1.log")
    slow.compress_type = zipfile.ZIP_BZIP2
    for entry, message in (
        (link, "no links"),
        (pipe, "no links"),
        (slow, "stored or deflated"),
        (zipfile.ZipInfo("events.jsonl"), "twice"),
        (zipfile.ZipInfo("b/config.json"), "the files of one run"),
    ):
        sent = tmp_path / "sent.zip"
        sent.write_bytes(zipped(files))
        with warnings.catch_warnings(), zipfile.ZipFile(sent, "a") as archive:
            warnings.simplefilter("ignore")
            archive.writestr(entry, b"/etc/passwd")
        with pytest.raises(ValueError, match=message):
            run_zip.unpack(sent, tmp_path)
        assert not (tmp_path / "events.jsonl").exists(), "refused before anything is written"


def test_limits_of_a_zip(there: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(there)
    with pytest.raises(ValueError, match="files; allowed: at most 2,000"):
        unpacked(tmp_path, zipped(files | {f"code/{number}.py": b"" for number in range(2_000)}))
    content = bytearray(zipped(files))
    at = content.rindex(b"PK\x01\x02") + 24  # the size of the last entry
    content[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    (tmp_path / "sent.zip").write_bytes(content)
    with pytest.raises(ValueError, match="MiB when unpacked"):
        run_zip.unpack(tmp_path / "sent.zip", tmp_path / "folder")
    monkeypatch.setattr(run_zip, "MAX_ZIP_BYTES", 100)
    with pytest.raises(ValueError, match="the zip is larger than"):
        run_zip.unpack(tmp_path / "sent.zip", tmp_path / "folder")


def test_a_damaged_zip_leaves_nothing(page: Page, there: RunDirectory, tmp_path: Path) -> None:
    content = zipped(files_of(there))
    middle = len(content) // 3
    for sent in (b"no zip", content[:-30], content[:middle] + bytes(40) + content[middle + 40 :]):
        with pytest.raises(ValueError, match="the zip cannot be read"):
            page.send(sent, ANN)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".import"]
    assert not list((tmp_path / "runs" / ".import").iterdir())
    assert not [path for path in page.uploads.incoming.rglob("*") if path.is_file()]
