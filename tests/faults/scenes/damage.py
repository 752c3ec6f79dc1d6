"""Files of a finished run are truncated, altered, reordered or of a newer version."""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.page import Page
from tests.faults.registry import add
from tests.faults.trial import BUSY_START_S, Trial, shared_folder
from tests.harness import REPOSITORY, Launcher
from trainers.contract import checkpoint_files
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local.supervisor import Supervisor

MAX_LOOK_S = 10.0
MAX_STEPS = 210
CHECKPOINT_FILES = (
    "model.safetensors",
    "optimizer.pt",
    "rank_0.pt",
    "rank_1.pt",
    "state.json",
    "manifest.json",
)

Damage = Callable[[bytes, random.Random], bytes]


@functools.cache
def original() -> RunDirectory:
    """Return the run whose copies are damaged, created once: trained, evaluated, saved and finished."""
    launcher = Launcher(shared_folder("original"), REPOSITORY)
    try:
        live = launcher.start(max_steps=MAX_STEPS, checkpoint_every_steps=60, eval_every_steps=50)
        assert live.wait_for_end(2 * BUSY_START_S).state == "finished", live.story()
    finally:
        launcher.close()
    return live.run


def _cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def _flip_bits(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 5, 100))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data))
    length = min(len(data) - start, dice.choice((1, 16, 512, 4096)))
    block = dice.choice((bytes(length), dice.randbytes(length), b"7" * length, b"\n" * length))
    return data[:start] + block + data[start + length :]


def _insert(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data))
    extra = (
        b"\n{not json\n",
        b"\nnull\n",
        b'\n{"kind":"step"}\n',
        b"\n" + b"[" * 100_000 + b"\n",
        dice.randbytes(99),
    )
    return data[:start] + dice.choice(extra) + data[start:]


def _shuffle_lines(data: bytes, dice: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    first, second = dice.randrange(len(lines)), dice.randrange(len(lines))
    if dice.random() < 0.5:
        del lines[first]
    else:
        lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def _empty(data: bytes, dice: random.Random) -> bytes:
    return b""


DAMAGES: tuple[Damage, ...] = (_cut, _flip_bits, _flip_bits, _overwrite, _insert, _shuffle_lines, _empty)


def _copy(trial: Trial) -> RunDirectory:
    run = RunDirectory(trial.runs_dir / "damaged-1")
    trial.page = Page(trial.runs_dir)
    shutil.copytree(original().path, run.path)
    return run


def _damage(trial: Trial, path: Path) -> None:
    data, how = path.read_bytes(), trial.dice.choice(DAMAGES)
    path.write_bytes(how(data, trial.dice))
    trial.note = f"{path.name} {how.__name__}"
    trial.strike()


def _open(trial: Trial, run: RunDirectory, *, says: str = "") -> None:
    """Request the list, the status and all routes.

    Each must be fast, readable and never report a live run.
    """
    page = trial.page
    row, status = page.row(run.run_id), page.status(run.run_id)
    for wrong in page.look(run.run_id):
        trial.complain(f"{trial.note}: {wrong}")
    trial.is_true_now()
    if trial.expect(row is not None, f"{trial.note}: not in the list") and row is not None:
        trial.expect(row["state"] in ("finished", "lost"), f"{trial.note}: the list says {row['state']}")
        words = f"{row['error']} {status if isinstance(status, str) else status['error']}"
        trial.expect(says in words, f"{trial.note}: does not say {says!r}: {words}")
        trial.expect("Traceback" not in words and "Errno" not in words, f"{trial.note}: not plain: {words}")
    took_s = time.monotonic() - trial.struck_at
    trial.expect(took_s < MAX_LOOK_S, f"{trial.note}: took {took_s:.1f} s")


def _can_be_started(trial: Trial, run: RunDirectory) -> None:
    """Check how a resume begins, without training: take the lock and continue the numbering of events."""
    try:
        Supervisor(run, None)
    except Exception as error:  # noqa: BLE001 - any exception would abort the resume
        trial.complain(f"{trial.note}: a resume dies of {type(error).__name__}: {error}")


def _events(trial: Trial) -> None:
    run = _copy(trial)
    _damage(trial, run.events)
    _open(trial, run)
    _can_be_started(trial, run)


def _status(trial: Trial) -> None:
    run = _copy(trial)
    _damage(trial, run.status)
    _open(trial, run)
    found = liveness.read_status(run)
    trial.expect(found.state == "finished" or _is_other(run), f"{trial.note}: {found}")


def _is_other(run: RunDirectory) -> bool:
    """True if the damaged file is still a valid status, indistinguishable from a real one."""
    try:
        return json.loads(run.status.read_bytes())["state"] == liveness.read_status(run).state
    except (ValueError, LookupError, TypeError):
        return False


def _configuration(trial: Trial) -> None:
    run = _copy(trial)
    _damage(trial, run.config)
    _open(trial, run)


def _other_files(trial: Trial) -> None:
    run = _copy(trial)
    name = trial.dice.choice(("commands.jsonl", "notes.json", "data.json", "run.lock", "logs/rank_0.log"))
    path = run.path / name
    if not path.exists() or not path.stat().st_size:
        path.write_text('{"name": "a", "tags": ["b"], "note": "c"}\n')
    _damage(trial, path)
    _open(trial, run)
    _can_be_started(trial, run)


def _checkpoint(trial: Trial) -> None:
    """A damaged checkpoint is never loaded, and the error names the file. SHA-256 sums detect any damage."""
    run = _copy(trial)
    newest = run.list_checkpoints()[-1]
    path = newest.path / trial.dice.choice(CHECKPOINT_FILES)
    before = path.read_bytes()
    _damage(trial, path)
    _open(trial, run)
    if path.name == "manifest.json":
        _manifest_is_checked(trial, run, newest.step)
        return
    try:
        checkpoint_files.verify(run, newest.step)
        trial.expect(path.read_bytes() == before, f"{trial.note}: taken for whole")
    except checkpoint_files.CheckpointError as error:
        trial.expect(path.name in str(error) and "the latest complete one is step" in str(error), str(error))


def _manifest_is_checked(trial: Trial, run: RunDirectory, step: int) -> None:
    try:
        checkpoint_files.verify(run, step)
    except checkpoint_files.CheckpointError:
        return
    except Exception as error:  # noqa: BLE001 - any other exception is the finding
        trial.complain(f"{trial.note}: {type(error).__name__}: {error}")


def _newer(trial: Trial, what: str) -> None:
    run = _copy(trial)
    version = trial.dice.randint(3, 10**6)
    trial.note = f"newer {what}"
    if what == "checkpoint":
        path = run.list_checkpoints()[-1].path / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": version, "new": 1}))
    elif what == "events":
        with run.events.open("a") as file:
            number = sum(1 for _ in run.events.open())
            file.write(json.dumps({"seq": number, "time_unix_s": 2e9, "kind": "dance", "new": [1]}) + "\n")
    else:
        path = run.config if what == "configuration" else run.status
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": version, "new": 1}))
    trial.strike()
    has = {"configuration": "it has schema", "status": "schema"}.get(what)
    _open(trial, run, says=f"newer version of this program ({has} {version}" if has else "")
    if what == "checkpoint":
        try:
            checkpoint_files.verify(run, run.list_checkpoints()[-1].step)
            trial.complain("a checkpoint of a newer format was taken")
        except checkpoint_files.CheckpointError as error:
            trial.expect("newer version of this program" in str(error), str(error))


def _pid_used_again(trial: Trial) -> None:
    """The status names the PID of an unrelated live process: the run is lost and can be resumed."""
    run = _copy(trial)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        status = json.loads(run.status.read_text())
        live = {"state": trial.dice.choice(("running", "starting", "stopping", "paused")), "pid": other.pid}
        run.status.write_text(json.dumps(status | live | {"ended_unix_s": None, "exit_code": None}))
        with run.events.open("r+b") as file:  # remove the final event
            lines = file.read().splitlines(keepends=True)
            file.truncate(sum(map(len, lines[:-1])))
        trial.note = "a pid used again"
        trial.strike()
        _open(trial, run, says="gone, so the run ended without a final event")
        trial.expect(liveness.read_status(run).state == "lost", str(liveness.read_status(run)))
        trial.expect(other.poll() is None, "the other process was ended")
    finally:
        other.kill()
        other.wait()


add("events file cut or altered", _events)
add("status file cut or altered", _status)
add("configuration cut or altered", _configuration)
add("checkpoint cut or altered", _checkpoint)
add("another file of a run cut or altered", _other_files)
for _what in ("configuration", "status", "events", "checkpoint"):
    add(f"{_what} of a newer version", partial(_newer, what=_what))
add("a PID used again by another process", _pid_used_again)
