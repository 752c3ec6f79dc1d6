"""What watching costs as the world grows: telemetry and the reporting collective, up to 1,024 ranks.

    python -m benchmarks.growth [--seconds 8] [--ranks 2,4,8,16] [--simulated 1024] [--json FILE]

The ranks are real, but a step is a sleep, so that the cores of this machine are not the limit. Measured is
the processor time of each rank's telemetry thread, and the time that a report's collective, ten times a
second, takes the training thread. For more ranks than can run here rank 0's part is measured alone: it
gathers, puts together and writes what so many ranks have left in a store.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.machine import Conditions
from tools.page_driver import REPOSITORY
from trainers.contract.rundir import RunDirectory
from trainers.engines.local.torchrun import literal_command, torchrun_arguments
from trainers.parallel import process_group
from trainers.parallel.process_group import World
from trainers.report import samples as samples_module
from trainers.report.meter import StepMeter
from trainers.report.reporter import NullReporter, Reporter
from trainers.report.step_clock import StepTimes
from trainers.report.telemetry import Gatherer, Pulse, Telemetry, node_key

STEP_S = 0.05
STEPS_A_REPORT = 2
NUM_GATHERED = 20
RANKS_A_NODE = 8


def main() -> None:
    """Measure and print the table; as a rank, be one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--ranks", default="2,4,8,16")
    parser.add_argument("--simulated", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out is not None:
        be_a_rank(options.out, options.seconds)
        return
    conditions = Conditions.note()
    found: dict[str, Any] = {}
    print("| ranks | telemetry, ms a second: rank 0, others | a report's collective, ms: median, largest |")
    print("|---|---|---|")
    for num_ranks in map(int, options.ranks.split(",")):
        found[str(num_ranks)] = measured = real(num_ranks, options.seconds)
        print(
            f"| {num_ranks} | {measured['telemetry_ms_a_second'][0]:.2f}, "
            f"{statistics.median(measured['telemetry_ms_a_second'][1:]):.2f} | "
            f"{measured['report_ms']['median']:.2f}, {measured['report_ms']['max']:.2f} |",
            flush=True,
        )
    found["simulated"] = {"num_ranks": options.simulated, **simulated(options.simulated)}
    print(f"\nRank 0's gathering of {options.simulated} ranks: {found['simulated']}")
    if options.json:
        options.json.write_text(json.dumps({**found, **conditions.report()}, indent=2) + "\n")


def real(num_ranks: int, seconds: float) -> dict[str, Any]:
    """Run so many ranks whose steps sleep."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--out", folder, "--seconds", str(seconds)]
        arguments = torchrun_arguments(num_ranks, "benchmarks.growth", *arguments)
        command = literal_command(arguments, [sys.executable, "-m", "torch.distributed.run"])
        subprocess.run(command, cwd=REPOSITORY, check=True, stderr=subprocess.DEVNULL)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(num_ranks)]
    reports = ranks[0]["report_ms"]
    return {
        "telemetry_ms_a_second": [rank["telemetry_ms_a_second"] for rank in ranks],
        "report_ms": {"median": round(statistics.median(reports), 3), "max": round(max(reports), 3)},
    }


def be_a_rank(folder: Path, seconds: float) -> None:
    """Sleep steps, report them as the loop does, and write what that took."""
    world = process_group.join("cpu")
    run = RunDirectory(folder)
    reporter = Reporter(run) if world.is_main else NullReporter()
    pulse = Pulse()
    telemetry = Telemetry(world, reporter, pulse)
    telemetry.start()
    meter = StepMeter(world, reporter)
    dist.barrier()
    thread = telemetry.thread.ident or 0
    began_cpu_s = time.clock_gettime(time.pthread_getcpuclockid(thread))
    began, took_ms, step = time.monotonic(), [], 0
    num_steps = round(seconds / STEP_S)
    while step < num_steps:
        time.sleep(STEP_S)
        step += 1
        pulse.beat(step, StepTimes)
        since = time.perf_counter()
        meter.add_loss(torch.tensor(1.0))
        meter.step_done(step=step, epoch=0, lr=0.1, num_global=1, step_time_s=STEP_S, data_time_s=0.0)
        if step % STEPS_A_REPORT == 0:
            took_ms.append(1000 * (time.perf_counter() - since))
    took_s = time.monotonic() - began
    spent_ms = 1000 * (time.clock_gettime(time.pthread_getcpuclockid(thread)) - began_cpu_s)
    answer = {"telemetry_ms_a_second": spent_ms / took_s, "report_ms": took_ms}
    (folder / f"{world.rank}.json").write_text(json.dumps(answer))
    telemetry.stop()
    reporter.close()
    process_group.leave()


def simulated(num_ranks: int) -> dict[str, float]:
    """Tell what the machines of so many ranks would; return what rank 0's part takes, in ms.

    Gathering is its telemetry thread's, writing its writer's; all of it holds the interpreter of rank 0.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:  # a store of its own would listen everywhere
        port, fd = listening.getsockname()[1], listening.detach()
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    reader = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    world = World(rank=0, local_rank=0, world_size=num_ranks, node=0, device=torch.device("cpu"))
    num_nodes = num_ranks // RANKS_A_NODE
    with tempfile.TemporaryDirectory() as folder:
        reporter = Reporter(RunDirectory(Path(folder)))
        telemetry = Telemetry(world, reporter, Pulse())
        samples = [{**telemetry.sample_once()} for _ in range(RANKS_A_NODE)]
        board, _file = samples_module.make_sample_board(RANKS_A_NODE)
        for place, sample in enumerate(samples):
            board.write(place, sample)
        for node in range(num_nodes):
            store.set(node_key(node), json.dumps(samples))
        everywhere = Gatherer(reader, [node_key(node) for node in range(num_nodes)])
        gather_ms, write_ms = [], []
        writer = time.pthread_getcpuclockid(reporter.writer.ident or 0)
        for _ in range(NUM_GATHERED):
            since, writer_since = time.thread_time(), time.clock_gettime(writer)
            board.read()
            telemetry.report([sample for found in everywhere.gather() for sample in found])
            gather_ms.append(1000 * (time.thread_time() - since))
            time.sleep(0.2)
            write_ms.append(1000 * (time.clock_gettime(writer) - writer_since))
        reporter.close()
    return {
        "gather_ms": round(statistics.median(gather_ms), 2),
        "write_ms": round(statistics.median(write_ms), 2),
    }


if __name__ == "__main__":
    main()
