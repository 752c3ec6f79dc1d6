"""Ten thousand step events a second through rank 0's queue, with ten readers: what is lost, what it costs.

    python -m benchmarks.event_rate [--seconds 30] [--rate 10000] [--readers 10]

One process puts, as the training loop does, a tenth of a second's steps at a time; its writer thread appends
them. Each reader is a process that tails the file as the page does. Prints one JSON object. The processor
time of the writer is that of its thread, and beside it that of putting, which the training thread pays.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import Conditions
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.report.reporter import Reporter, StepBatch, StepNote

PUT_EVERY_S = 0.1
READ_EVERY_S = 0.1
LAST = "end"


def main() -> None:
    """Measure and print; as a reader, be one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=10)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        print(json.dumps(read_to_the_end(options.read)))
        return
    print(json.dumps(measure(options.seconds, options.rate, options.readers), indent=2))


def measure(seconds: float, rate: int, num_readers: int) -> dict[str, Any]:
    """Write for so long and return what readers saw and what writing cost."""
    conditions = Conditions.note()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        reporter = Reporter(run)
        command = [sys.executable, "-m", "benchmarks.event_rate", "--read", str(run.events)]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(num_readers)]
        began, put_s, num_steps = time.monotonic(), 0.0, 0
        writer_began_s = writer_cpu_s(reporter)
        while (elapsed := time.monotonic() - began) < seconds:
            fresh = [note(number) for number in range(num_steps, int(elapsed * rate))]
            losses = [2.3 / (1 + number / 1000) for number in range(num_steps, num_steps + len(fresh))]
            num_steps += len(fresh)
            before = time.thread_time()
            if fresh:
                reporter.steps(StepBatch(notes=fresh, losses=losses))
            put_s += time.thread_time() - before
            time.sleep(PUT_EVERY_S)
        took_s = time.monotonic() - began
        writer_s = writer_cpu_s(reporter) - writer_began_s
        reporter.state("finished", LAST)
        reporter.close()
        seen = [json.loads(reader.communicate()[0]) for reader in readers]
        size = run.events.stat().st_size
    return {
        "seconds": round(took_s, 1),
        "steps_put": num_steps,
        "steps_a_second": round(num_steps / took_s),
        "megabytes": round(size / 1e6, 1),
        "lost": [num_steps - each["steps"] for each in seen],
        "gaps": sum(each["gaps"] for each in seen),
        "writer_percent_of_a_core": round(100 * writer_s / took_s, 2),
        "putting_percent_of_a_core": round(100 * put_s / took_s, 2),
        "reader_percent_of_a_core": round(100 * max(each["cpu_s"] for each in seen) / took_s, 2),
        **conditions.report(),
    }


def writer_cpu_s(reporter: Reporter) -> float:
    """Return the processor time that the writer's thread has had."""
    return time.clock_gettime(time.pthread_getcpuclockid(reporter.writer.ident or 0))


def note(number: int) -> StepNote:
    """Return what the loop notes of one step."""
    return number + 1, number // 125, 0.001, 128, 0.003217, 0.000215


def read_to_the_end(path: Path) -> dict[str, float]:
    """Tail a file as the page does until its last event; return what was seen."""
    offset, expected, num_steps, gaps, is_over = 0, 0, 0, 0, False
    while not is_over:
        batch, offset = events.read(path, offset)
        for event in batch:
            gaps += event["seq"] != expected
            expected = event["seq"] + 1
            num_steps += event["kind"] == "step"
            is_over = event["kind"] == "state" and event["reason"] == LAST
        if not batch:
            time.sleep(READ_EVERY_S)
    return {"steps": num_steps, "gaps": gaps, "cpu_s": time.process_time()}


if __name__ == "__main__":
    main()
