"""Misbehaving ranks: a model in a copy of the repository misbehaves at a random step."""

from __future__ import annotations

from functools import partial

from tests.faults.misbehaving import misbehaving, repository_with
from tests.faults.registry import add
from tests.faults.trial import BUSY_START_S, Trial
from tests.harness import wait_until

RAISES = 'raise RuntimeError("the weights are upside down")'
EXITS = "os._exit(0)"
SEGFAULTS = "__import__('ctypes').string_at(0)"
# A limit on the address space simulates a lack of memory.
FILLS_MEMORY = (
    "import resource, torch; "
    "used = int(open('/proc/self/statm').read().split()[0]) * 4096; "
    "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28)); "
    "self.hoard = [torch.ones(2**22) for _ in range(10_000)]"
)
# SIGKILL simulates the kernel's out-of-memory killer.
IS_KILLED = "os.kill(os.getpid(), 9)"


def _fails(trial: Trial, behaviour: str, says: str) -> None:
    """Let a rank misbehave within the first 400 steps. It notes the time, on a clock of all processes."""
    rank, mark = trial.dice.randint(0, 1), trial.folder / "mark"
    how = f"open({str(mark)!r}, 'w').write(str(time.monotonic())); {behaviour}"
    files = misbehaving(how, rank=rank, step=trial.dice.randint(1, 400))
    trial.launcher.repository = repository_with(files, trial.folder)
    live = trial.start(model="misbehaves")

    def says_so() -> bool:
        assert live.supervisor.poll() is None or mark.exists(), f"it ended before: {live.story()}"
        return mark.exists() and mark.stat().st_size > 0

    wait_until("the step of the fault", says_so, BUSY_START_S)
    trial.struck_at = float(mark.read_text())
    trial.ends(live.run, "failed", says=says.replace("RANK", str(rank)))


add("a rank raises", partial(_fails, behaviour=RAISES, says="Rank RANK failed: RuntimeError: the weights"))
add("a rank exits 0 early", partial(_fails, behaviour=EXITS, says="Rank RANK ended before training was done"))
add("a rank segfaults", partial(_fails, behaviour=SEGFAULTS, says=r"Rank RANK crashed \(SIGSEGV\)"))
add("a rank runs out of memory (RLIMIT_AS)", partial(_fails, behaviour=FILLS_MEMORY, says="Rank RANK.*batch"))
add(
    "a rank is killed as the out-of-memory killer does",
    partial(_fails, behaviour=IS_KILLED, says="Rank RANK was killed.*batch"),
)
