"""Entry point of a rank under torchrun: build the job, train, leave the process group, exit.

    torchrun OPTIONS --nproc-per-node N -m trainers.worker RUN_DIR [--config JSON | --resume STEP]

The page shows the complete command; `engines/local/torchrun.py` explains each option of torchrun.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import traceback
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from trainers.contract import config as config_module
from trainers.contract import fence, heartbeats, manifests, rundir, start_from, tickets
from trainers.contract.rundir import RunDirectory, library_error_text
from trainers.engines.local import torchrun_process
from trainers.engines.local.torchrun import COMMANDS_OFFSET, IS_WARM, shell_command
from trainers.files import plain_files, private_files
from trainers.files.json_files import parse_json
from trainers.machine import host, processes
from trainers.machine.lifeline import die_with_parent, parent_by_name
from trainers.watch.settings import SUPERVISED

if TYPE_CHECKING:
    from trainers.job import Job
    from trainers.parallel.process_group import World
    from trainers.report.reporter import NullReporter
    from trainers.report.telemetry import LiveProgress

HIGHEST_EXIT_PRIORITY = 10**6

log = logging.getLogger(__name__)


def main() -> int:
    """Run this rank and return the exit code for its process."""
    parser = argparse.ArgumentParser(description="Train one rank of a run; torchrun starts it.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", type=int, metavar="STEP", help="resume from the checkpoint of this step")
    parser.add_argument("--config", metavar="JSON", help="create RUN_DIR with this configuration")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"start it with torchrun: {shell_command('trainers.worker', 'RUN_DIR')}")
    run = RunDirectory(options.run_dir.resolve())
    if options.config is not None and (problem := make_run(run, options.config)) is not None:
        sys.exit(problem)
    if (problem := start_problem(run, options.resume)) is not None:
        sys.exit(problem)
    return work(run, options.resume)


def work(run: RunDirectory, resume_step: int | None) -> int:
    """Train as this rank of a run; return the exit code of the process. Errors go to the rank's log."""
    private_files.begin(run.path.parent)
    fence.enter_by_environment(run.path)
    redirect_output(run)
    processes.show_rank(run.run_id, int(os.environ["RANK"]))
    die_with_parent(parent_by_name())
    host.be_ended_first()
    torchrun_process.use_folder()
    heartbeats.begin_heartbeats()
    try:
        is_done = run_recorded(run, resume_step)
    except BaseException:  # noqa: BLE001 - the worker's main: any error goes to the log
        traceback.print_exc()
        return 1
    if is_forked() and not is_done:
        # user code called sys.exit(0): without this, torchrun and the other ranks would wait for this rank
        end_at_once(0)
    return 0


def is_forked() -> bool:
    """True if torchrun forked this rank instead of starting a new interpreter."""
    return multiprocessing.parent_process() is not None


def end(exit_code: int) -> NoReturn:
    """End the process without the interpreter's shutdown.

    During shutdown a broken process group can hang or abort in its destructor, and unloading torch is slow.
    """
    if exit_code == 0 and is_forked():
        # torchrun waits until all forked ranks have reported success, so exit normally until then. Our
        # finalizer has the highest priority: it runs first and skips the rest of the shutdown.
        util.Finalize(None, end_at_once, args=(0,), exitpriority=HIGHEST_EXIT_PRIORITY)
        sys.exit(0)
    end_at_once(exit_code)


def end_at_once(exit_code: int) -> NoReturn:
    """Terminate child processes and end this process without any cleanup in the interpreter."""
    for child in multiprocessing.active_children():
        child.terminate()
    torchrun_process.remove_own_folder()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def make_run(run: RunDirectory, text: str) -> str | None:
    """Create the run directory; return the error message, or None."""
    try:
        config = config_module.parse(parse_json(text.encode()))
    except ValueError as error:
        return f"The configuration cannot be used: {error}"
    return rundir.make_on_rank_0(run, lambda: rundir.make(run, config, start_from.copy_function(run, config)))


def start_problem(run: RunDirectory, resume_step: int | None) -> str | None:
    """Return why the run cannot start, or None: it has no configuration, or would overwrite checkpoints."""
    if not run.config.is_file():
        return (
            f"There is no {run.config}. The page writes it when you press Start; by hand, --config '{{}}' "
            "makes a run with the default settings."
        )
    if SUPERVISED not in os.environ and resume_step is None and (checkpoints := run.list_checkpoints()):
        steps = ", ".join(str(item.step) for item in checkpoints[-5:])
        return f"{run.path} already has checkpoints. Resume from one of them with --resume STEP: … {steps}"
    return None


def redirect_output(run: RunDirectory) -> None:
    """Redirect the output to this rank's log."""
    rank = int(os.environ["RANK"])
    if rank == 0 and SUPERVISED not in os.environ:
        print(f"training {run.path}; events in events.jsonl, output in logs/rank_*.log", flush=True)
        if is_open_to_the_network():
            print(
                "This torchrun accepts connections from the network and executes what it receives. The "
                "safe command, with 2 ranks:\n"
                f"  {shell_command('trainers.worker', str(run.path))}",
                flush=True,
            )
    plain_files.redirect_output(run.rank_log(rank))


def is_open_to_the_network() -> bool:
    """True if torchrun opened a TCP store although all ranks are on one machine and do not use it."""
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return is_one_machine and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def set_up_log(rank: int) -> None:
    """Prefix this rank's log lines with the time and the rank."""
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO,
        format=f"%(asctime)s rank {rank}: %(message)s",
        datefmt="%H:%M:%S%z",  # with the time zone: readers of the page may be in another one
    )


def run_recorded(run: RunDirectory, resume_step: int | None) -> bool:
    """Train; an exception is also written to torchrun's error file, with rank and traceback.

    Returns:
        True if training ended normally, False if something called `sys.exit(0)`.
    """
    # Imported here because importing torch takes seconds; the log must be redirected first.
    from torch.distributed.elastic.multiprocessing.errors import record

    return record(run_rank)(run, resume_step) is not None


def run_rank(run: RunDirectory, resume_step: int | None) -> Literal["done"]:
    """Build this rank's part of the job, train, and leave the process group."""
    import torch

    from trainers.parallel import devices, process_group
    from trainers.report import reporter
    from trainers.report.telemetry import LiveProgress, Telemetry

    config = run.read_config()
    world = process_group.join(
        config.device,
        heartbeats.silence_limit(config),
        most_threads=granted_threads(run),
        recorded_threads=manifests.recorded_threads(run, resume_step, config.world_size),
    )
    heartbeats.write_heartbeat(heartbeats.BUILDING)
    if world.device.type == "cuda":
        heartbeats.note_gpu()
    set_up_log(world.rank)
    device_label = devices.describe_device(world.device)
    log.info("process %d, rank %d of %d, on %s", os.getpid(), world.rank, world.world_size, device_label)
    lock = None
    if world.is_main and SUPERVISED not in os.environ:
        lock = run.acquire_lock()
        tickets.claim_ticket(run, None)
    offset = os.environ.get(COMMANDS_OFFSET)
    run_reporter = reporter.create(
        run, is_main=world.is_main, commands_offset=None if offset is None else int(offset)
    )
    live_progress = LiveProgress()
    telemetry = Telemetry(world, run_reporter, live_progress)
    try:
        device_label = "GPU" if world.device.type == "cuda" else "CPU rank"
        plural = "" if world.world_size == 1 else "s"
        warm_text = " from the warm pool" if IS_WARM in os.environ else ""
        num_threads = torch.get_num_threads()
        threads = (
            f", {num_threads} thread{'' if num_threads == 1 else 's'} each"
            if world.device.type == "cpu"
            else ""
        )
        ranks = f"{world.world_size} {device_label}{plural}{warm_text}{threads}"
        run_reporter.state("starting", f"{ranks}, building {config.model}.")
        telemetry.start()
        _train(run, resume_step, run_reporter, live_progress, world)
    except BaseException as error:
        if lock is not None:
            run_reporter.state("failed", f"{type(error).__name__}: {library_error_text(error)}")
        raise
    finally:
        heartbeats.write_heartbeat(heartbeats.ENDING)
        telemetry.stop()
        run_reporter.close()
    process_group.leave()
    return "done"


def granted_threads(run: RunDirectory) -> int | None:
    """Return the number of threads per rank that the queue granted, or None if unknown."""
    try:
        ticket = tickets.read_granted(run)
    except (tickets.TicketError, OSError) as error:
        log.warning("cannot read the number of threads that the queue granted: %s", error)
        return None
    return None if ticket is None or ticket.grant is None else ticket.grant.num_threads


def _train(
    run: RunDirectory,
    resume_step: int | None,
    reporter: NullReporter,
    live_progress: LiveProgress,
    world: World,
) -> None:
    from trainers import loop
    from trainers.build import build_job
    from trainers.control import Stopped

    job = build_job(run, reporter, live_progress, world, resume_step)
    reporter.event("plan", **job.plan())
    reporter.state("running", _start_description(job, resume_step))
    stop_reason: str | None = None
    try:
        loop.train(job)
    except Stopped as stopped:
        stop_reason = str(stopped)
    finally:
        heartbeats.write_heartbeat(heartbeats.SAVING)
        job.checkpointer.close()
    step = job.progress.step
    log.info("%s after step %d", "finished" if stop_reason is None else "stopped", step)
    if stop_reason is not None:
        saved = "saved" if job.checkpointer.is_saved(step) else "not saved"
        reporter.state("stopped", f"Stopped after step {step:,}, {saved}. {stop_reason}".rstrip())
    elif job.has_stopped_improving:
        reporter.state("finished", f"Stopped early at step {step:,}: {job.early_stopping_status()}.")
    else:
        reporter.state("finished", f"All {step:,} steps done.")


def _start_description(job: Job, resume_step: int | None) -> str:
    return "From the beginning." if resume_step is None else f"Resumed from step {job.progress.step:,}."


if __name__ == "__main__":
    end(main())
