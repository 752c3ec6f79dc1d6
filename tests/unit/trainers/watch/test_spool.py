"""Tests of the files through which ranks share numbers, the stored code, and the loops around a line."""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness import REPOSITORY
from trainers.contract import code
from trainers.watch import loops, spool
from trainers.watch.spool import Control


def test_machines_exchange_requests_and_the_numbers_of_their_ranks(tmp_path: Path) -> None:
    first, second = (Control(tmp_path, machine=each, num_ranks=4, ranks_per_machine=2) for each in (0, 1))
    first.set(spool.STOP_STEP, 7)
    first.set(spool.ASKS, 1)
    first.set_rank_value(1, spool.STEP, 5)
    second.set_rank_value(3, spool.STEP, 41)
    second.set_rank_value(3, spool.END, spool.DONE)
    second.set_rank_value(1, spool.STEP, 99)
    assert second.get(spool.STOP_STEP) == 0 and first.newest_step(4) == 5, "no memory is shared"
    second.exchange()
    first.exchange()
    assert second.get(spool.STOP_STEP) == 7 and second.get(spool.ASKS) == 0
    assert first.newest_step(4) == 41 and first.get_rank_value(1, spool.STEP) == 5, "each has its own ranks"
    assert spool.read_ends(tmp_path, 4)[3] == spool.DONE


def test_control_is_shared_and_a_link_is_refused(tmp_path: Path) -> None:
    one, other = Control(tmp_path), Control(tmp_path)
    one.set(spool.STOP_STEP, 7)
    one.set_rank_value(2, spool.STEP, 41)
    assert other.get(spool.STOP_STEP) == 7 and other.newest_step(4) == 41
    assert spool.read_ends(tmp_path, 2) == [spool.LIVE, spool.LIVE]
    linked = tmp_path / "copied"
    linked.mkdir()
    (linked / "watch").symlink_to(tmp_path / "watch")
    with pytest.raises(OSError, match="is a link"):
        Control(linked)


def test_steps_continue_in_further_files_which_are_deleted_when_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "PART_BYTES", 300)
    Control(tmp_path)
    writer, reader = spool.SpoolWriter(tmp_path, 0), spool.SpoolReader(tmp_path, 0)
    found: list[float] = []
    for step in range(1, 30):
        writer.add_steps(array("d", [step] * len(spool.Row._fields)))
        if step % 4 == 0 or step == 29:  # sometimes one file behind, sometimes within one
            found += [row.step for row in reader.steps()]
            assert found == list(range(1, step + 1))
    assert len(list((tmp_path / spool.FOLDER).glob("steps_0_*.bin"))) <= 2


@pytest.mark.parametrize("name", ["../train.py", "/train.py", ".hidden/train.py", "a\\b.py", "a\nb.py"])
def test_code_stays_in_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        code.check({"train.py": b"", name: b""}, "train.py")


def test_limits_of_code_are_named() -> None:
    with pytest.raises(ValueError, match="at most 5 MiB"):
        code.check({"train.py": b" " * (code.MAX_BYTES + 1)}, "train.py")
    with pytest.raises(ValueError, match="at most 200"):
        code.check({"train.py": b""} | {f"{number}.py": b"" for number in range(200)}, "train.py")
    with pytest.raises(ValueError, match=r"one of the \.py files: train\.py"):
        code.check({"train.py": b""}, "missing.py")


def test_code_is_read_as_it_was_written_and_links_are_left_out(tmp_path: Path) -> None:
    files = {"train.py": b"print(1)\n", "lib/data.bin": bytes(range(256))}
    code.write(tmp_path, files)
    (tmp_path / "code" / "passwd.py").symlink_to("/etc/passwd")
    assert code.read(tmp_path) == files


def test_the_number_of_steps_is_that_of_the_ranges_around_the_step(tmp_path: Path) -> None:
    epochs: list[int | None] = []
    steps: list[int | None] = []
    script = tmp_path / "script.py"
    script.write_text(
        "def endless():\n    while True:\n        for batch in [0]:\n            yield begin()\n"
        "batches = endless()\n"
        "for step in range(9):\n    next(batches)\n    did_step()\n    break\n"
        "class Bar:\n    def __init__(self, iterable): self.iterable = iterable\n"
        "    def __iter__(self): return iter(self.iterable)\n"
        "bar = Bar(range(3))\n"
        "for epoch in bar:\n"
        "    for i in range(0, 10, 4):\n        did_step()\n        break\n"
        "    for batch in [0]:\n        begin()\n        did_step()\n"
        "    break\n"
        "while epoch < 12:\n    did_step()\n    epoch += 1\n    break\n"
        "while epoch < 12:\n    epoch += 1\n    did_step()\n    break\n"
        "while step < 10**9:\n    did_step()\n    step += 4096\n    break\n"
        "for i in range(1000):\n    if i % 4 == 0:\n        did_step()\n        break\n"
        "for i, batch in enumerate(loader, 1):\n    if not i % k:\n        did_step()\n        break\n"
        "for i, batch in enumerate(loader):\n    is_last = i % k == 0 or i + 1 == len(loader)\n"
        "    if is_last:\n        did_step()\n        break\n"
        "for batch in loader:\n    if batch == 0:\n        did_step()\n"
        "for i in range(99):\n    if i % 10 == 0: pass\n    else:\n        did_step()\n        break\n"
        "for i in range(99):\n    if (i + 1) % 10: pass\n    else:\n        did_step()\n        break\n"
        "for i in range(1, 100):\n    if i % 10:\n        did_step()\n        break\n"
        "if bar:\n    for i in range(1000):\n        did_step()\n        break\n"
        "for i in range(1000):\n    if (i + 1) % 4 != 0:\n        continue\n    did_step()\n    break\n"
        "for i in range(1000):\n    if i < 2:\n        continue\n    did_step()\n    break\n"
        "n = 5\nwhile True:\n    did_step()\n    n += 1\n    n += 99\n    if n > 30:\n        break\n"
        "n = 5\nwhile True:\n    n += 1\n    if n == 30:\n        break\n    did_step()\n    n = 29\n"
        "n = 0\nfor epoch in range(3):\n    for batch in loader:\n        if n >= 7:\n            break\n"
        "        did_step()\n        n += 1\n        n += 99\n"
        "for epoch in range(3):\n    for i, batch in enumerate(loader):\n        for one in optimizers:\n"
        "            did_step()\n            break\n        if i >= 4:\n            break\n        break\n"
        "    break\n"
        "for epoch in trange(3, disable=True):\n    m = 0\n    for batch in loader:\n"
        "        did_step()\n        m += 1\n        m += 3\n"
        "        if m == 4:\n            break\n    break\n"
    )
    names = {
        "begin": lambda: epochs.append(loops.num_epochs(sys._getframe(1))),
        "loader": type("DataLoader", (list,), {})(range(10)),
        "k": 4,
        "optimizers": [SimpleNamespace(param_groups=[])] * 2,
        "trange": lambda number, **_options: range(number),
        "did_step": lambda: steps.append(loops.num_steps(sys._getframe(1))),
        "__name__": "script",
    }
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert epochs == [None, 3], "an endless pass is no epoch"
    assert steps[:14] == [9, 9, None, 12, 11, None, 250, 2, 3, None, None, 9, None, 1000]
    assert steps[14:] == [250, None, 26, 24, 7, 15, 12], (
        "after a guard, until a break, in a list of optimizers"
    )


def test_watching_imports_neither_torch_nor_what_other_environments_lack() -> None:
    program = "import trainers.watch.__main__, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "trainers" in loaded and not loaded & {"torch", "psutil", "numpy", "pydantic", "gradio", "ddp_gui"}
