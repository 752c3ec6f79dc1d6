"""How many threads each rank uses on the CPU: as many as there are free cores for.

More threads than free cores are far slower than fewer: at the end of each operation all wait for the one
whose core is taken.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from trainers.machine.other_load import OtherLoadReader
from trainers.machine.processor import num_cores

GIVEN = "OMP_NUM_THREADS"
# Set by what starts the ranks, which has looked at the machine for some time before.
FREE_CORES = "TRAINERS_FREE_CORES"
MOST = 1024
# A rank on a GPU only picks batches, which is copying: a few threads use all the bandwidth of the memory, and
# ranks of other runs on this machine pick theirs.
MOST_BESIDE_GPU = 8
# On a machine that does little else the number must not depend on the moment of the start: another number
# adds up in another order, and two runs with one seed would differ in the last digits.
NEARLY_ALL = 0.8
MEASURE_S = 5.0


class FreeCores:
    """Measures the cores that other programs leave free, from its creation on."""

    def __init__(self, job_cpu_s: float = 0.0) -> None:
        self._reader = OtherLoadReader()
        self._reader.read(job_cpu_s)
        self._next_s = -math.inf

    def note(self, job_cpu_s: float = 0.0) -> None:
        """Note for the ranks, in the environment, how many there were since the last measurement.

        A measurement takes at least `MEASURE_S`, after the first: a short one shows only the last moment.
        """
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + MEASURE_S
        load = self._reader.read(job_cpu_s)
        if load is not None:
            os.environ[FREE_CORES] = f"{num_cores() * (1 - load.others_percent / 100):.2f}"


def choose(num_ranks: int, cores: int, *, most: int | None = None, recorded: int | None = None) -> int:
    """Return the threads for each of the ranks of this machine.

    OMP_NUM_THREADS wins. A resumed run takes the number it had, because another one adds up in another order;
    otherwise free cores are divided among the ranks.

    Args:
        cores: those that the ranks may use.
        most: for each rank, from the queue, which allows a resumed run the recorded number.
        recorded: the number of threads of the run's checkpoint.
    """
    if (wanted := given()) is not None:
        return wanted
    if recorded is not None and recorded <= (cores if most is None else min(cores, most)):
        return recorded
    free = min(cores, round(_free_cores(cores)))
    if free >= cores * NEARLY_ALL:
        free = cores
    return max(1, min(free // num_ranks, MOST if most is None else most))


def given() -> int | None:
    """Return the number that a user has set for this process; None where nobody has.

    torchrun sets it to 1 for several ranks where it is not set. The environment that torchrun was started
    with shows which of the two it is (Linux).
    """
    value = os.environ.get(GIVEN)
    if value is None:
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        started_with = _environment_of(os.getppid())
        if started_with is not None:
            value = started_with.get(GIVEN)
        elif value == "1" and os.environ.get("LOCAL_WORLD_SIZE") != "1":
            return None
    first = (value or "").split(",")[0].strip()
    return min(MOST, int(first)) if first.isdecimal() and int(first) > 0 else None


def _free_cores(cores: int) -> float:
    try:
        return float(os.environ.get(FREE_CORES, ""))
    except ValueError:
        return cores


def _environment_of(pid: int) -> dict[str, str] | None:
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.decode(errors="replace").partition("=") for entry in block.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}
