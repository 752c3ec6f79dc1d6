"""How long a check of the machine, and its end, may take at most: the page ends one that takes longer."""

from __future__ import annotations

from trainers.machine.processes import GPU_KILL_WAIT_S, KILL_WAIT_S

# Far longer than a job takes on a machine that is busy with others'.
JOB_LIMIT_S = 120.0
PROBE_LIMIT_S = 120.0
# The driver takes its time to let go of a process that was killed: until then the last job is seen as a user.
TEARDOWN_S = 20.0
# All-reduces, DDP, its resume, and the same undisturbed.
NUM_JOBS_BEFORE_STRATEGIES = 4
# Those of this project besides DDP; each has a job of its own.
NUM_STRATEGIES = 6
# The file system's and the disk's checks, which are short, and the folder of all jobs that is removed.
FILES_S = 30.0

# A job's processes are killed in one go, and looked for once more.
KILL_S = GPU_KILL_WAIT_S + 2 * KILL_WAIT_S
# A check that is cancelled kills its job, then removes and keeps files.
CANCEL_S = KILL_S + FILES_S


def longest_check_s(job_limit_s: float = JOB_LIMIT_S, num_strategies: int = NUM_STRATEGIES) -> float:
    """Return how long a check takes in which every job hangs and is ended, in seconds.

    Args:
        num_strategies: those besides DDP.
    """
    num_jobs = NUM_JOBS_BEFORE_STRATEGIES + num_strategies
    return PROBE_LIMIT_S + KILL_S + num_jobs * (TEARDOWN_S + job_limit_s + KILL_S) + 2 * FILES_S
