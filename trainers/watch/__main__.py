"""Runs a user's script as `__main__` with hooks that turn its steps into the events of a run.

    torchrun OPTIONS --nproc-per-node N -m trainers.watch --run-dir DIR [--on-cpu] ENTRY ARGUMENTS ...
    python -m trainers.watch --run-dir DIR ENTRY ARGUMENTS ...      for a script that starts its own ranks

A missing DIR is created, with a copy of the script's code.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import contextlib
import json
import multiprocessing.process
import os
import shlex
import sys
import threading
import time
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from trainers.contract import code as code_module
from trainers.contract import fence, rundir, tickets  # noqa: F401 - see `hide_own_package`
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import REPOSITORY, redirect_output
from trainers.machine.lifeline import die_with_parent
from trainers.watch import collector, loops, session, settings, spool  # noqa: F401 - see `hide_own_package`
from trainers.watch.settings import STORE, SUPERVISED, Settings

_OWN_FILES = str(Path(__file__).parent)


def main() -> NoReturn:
    """Run the script and end this process with the script's exit code."""
    options = parse_arguments(sys.argv[1:])
    entry = options.entry.absolute()
    run = RunDirectory(options.run_dir.absolute())
    rank = int(os.environ.get("RANK", "-1"))
    if not entry.is_file():
        sys.exit(f"ENTRY is {str(options.entry)!r}; allowed: the path of a script that exists")
    if (problem := make_run(run, entry, options)) is not None:
        sys.exit(problem)
    num_ranks = run.read_config().nproc_per_node
    if SUPERVISED in os.environ and (rank >= 0 or num_ranks == 1):
        redirect_output(run.rank_log(max(0, rank)))
    script_settings = Settings(
        run_dir=run.path,
        code_dir=_code_dir(run, entry),
        on_cpu=options.on_cpu,
        store=os.environ.get(STORE, ""),
        master_address=_master_address(),
        num_ranks=num_ranks,
        resume_step=options.resume,
    )
    os.environ.pop("PYTHONSAFEPATH", None)
    if SUPERVISED in os.environ and rank >= 0:
        die_with_parent()  # ranks would not notice that torchrun was killed by SIGKILL
    fence.enter_by_environment(run.path)
    if options.folder is not None:
        os.chdir(options.folder)
    prepare_path(entry)
    package = _package_of(entry, script_settings.code_dir)
    if package:
        sys.path.insert(0, str(script_settings.code_dir))
    hide_own_package()
    session.begin(script_settings)
    if rank <= 0:
        append_state(run, "starting", f"Running {entry.name}.")
    exit_code = run_script(entry, options.arguments, run, rank, package)
    end(exit_code)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options; everything after ENTRY belongs to the script."""
    parser = argparse.ArgumentParser(
        prog="trainers.watch", description="Run a script with hooks that report its steps."
    )
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's directory")
    parser.add_argument("--folder", type=Path, help="the working folder of the script")
    parser.add_argument("--resume", type=int, metavar="STEP", help="the checkpoint for watch.load")
    parser.add_argument("--on-cpu", action="store_true", help="run a script for GPUs on the CPU")
    parser.add_argument("entry", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def make_run(run: RunDirectory, entry: Path, options: argparse.Namespace) -> str | None:
    """Create the run's directory if it is missing; return an error message, or None."""
    if run.config.is_file():
        return None

    def make() -> None:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        ranks_per_machine = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        code = code_module.read_folder(entry.parent, entry)
        config = Config(
            model="script",
            dataset="script",
            script=entry.name,
            script_arguments=shlex.join(options.arguments),
            script_folder=str(Path.cwd()),
            script_on_cpu=options.on_cpu,
            num_nodes=world_size // ranks_per_machine,
            nproc_per_node=ranks_per_machine,
        )
        rundir.make(run, config, lambda created: code_module.write(created.path, code))

    return rundir.make_on_rank_0(run, make)


def _master_address() -> tuple[str, str] | None:
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        return None
    return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


def _code_dir(run: RunDirectory, entry: Path) -> Path:
    """Return the folder of the script's own files: the run's stored code, or the script's folder."""
    stored = run.path / code_module.FOLDER
    return stored if entry.is_relative_to(stored) else entry.parent


def _package_of(entry: Path, code_dir: Path) -> str:
    """Return the package of a script with relative imports, as `python -m` sets it; else an empty string."""
    try:
        nodes = ast.walk(ast.parse(entry.read_bytes()))
    except (SyntaxError, ValueError):
        return ""
    is_relative = any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)
    return ".".join(entry.parent.relative_to(code_dir).parts) if is_relative else ""


def prepare_path(entry: Path) -> None:
    """Make the script import the same modules as without hooks: from its own folder, not from this project.
    Modules of this project are found by the path of their imported package. If the project's folder were in
    `sys.path`, its package `tools` would hide a folder `tools` of the script.
    """
    project = str(REPOSITORY)
    sys.path[:] = [path for path in sys.path if path not in ("", project, str(Path.cwd()))]
    sys.path.insert(0, str(entry.parent))
    other_paths = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", project)
    ]
    if other_paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(other_paths)
    else:
        os.environ.pop("PYTHONPATH", None)


def hide_own_package() -> None:
    """Make the script import its own package `trainers` instead of this project's package. From here on,
    `from trainers.x import y` finds this project's module only if `trainers.x` or the module y is already
    imported.
    """
    if PathFinder.find_spec("trainers") is not None:
        del sys.modules["trainers"]


def run_script(entry: Path, arguments: list[str], run: RunDirectory, rank: int, package: str = "") -> int:
    """Run the script as `__main__`, perhaps of a package; return the exit code of the process."""
    module = ModuleType("__main__")
    spec = ModuleSpec(f"{package}.{entry.stem}", None) if package else None
    module.__dict__.update(__file__=str(entry), __builtins__=__builtins__, __cached__=None, __spec__=spec)
    module.__package__ = package or None
    sys.modules["__main__"] = module
    sys.argv = [str(entry), *arguments]
    exit_code, error_info = 0, {}
    exit_now, pid = os._exit, os.getpid()

    def exit_process(status: int) -> NoReturn:
        """Write the records, then call `os._exit`; children, such as workers of a data loader, only exit."""
        if os.getpid() == pid:
            _finish(status, {}, run, rank)
        exit_now(status)

    os._exit = exit_process
    try:
        # `dont_inherit`: the `from __future__` imports of this module must not apply to the script.
        exec(compile(entry.read_bytes(), str(entry), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 # nosec B102
    except SystemExit as exit_request:
        exit_code = _exit_code(exit_request.code)
        error_info = report_error(exit_request, rank) if exit_code else {}
    except BaseException as error:  # noqa: BLE001 - the script's own error becomes the run's
        exit_code = 1
        error_info = report_error(error, rank)
        traceback.print_exception(error)
    os._exit = exit_now
    _finish(exit_code, error_info, run, rank)
    return exit_code


def _finish(exit_code: int, error_info: dict[str, Any], run: RunDirectory, rank: int) -> None:
    """Record how the script ended."""
    session.end(spool.DONE if exit_code == 0 else spool.FAILED, **error_info)
    if rank <= 0 and SUPERVISED not in os.environ:
        state = "finished" if exit_code == 0 else "failed"
        append_state(run, state, f"The script ended with exit code {exit_code}.")


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr, flush=True)
    return 1


def report_error(error: BaseException, rank: int) -> dict[str, Any]:
    """Remove frames of the hooks from an error, and write torchrun's error file; return the error's text."""
    error.__traceback__ = _strip_own_frames(error.__traceback__)
    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    failed_rank = getattr(error, "error_index", None)  # the failed rank, with `mp.spawn`
    if isinstance(failed_rank, int):
        rank, text = failed_rank, str(error)
        message = str(error).strip().splitlines()[-1]
        if path:
            path = str(Path(path).parent.with_name(str(rank)) / Path(path).name)
            Path(path).parent.mkdir(exist_ok=True)
    if path:
        details = {"py_callstack": text, "timestamp": str(int(time.time()))}
        content = {"message": {"message": message, "extraInfo": details}}
        Path(path).write_text(json.dumps(content), encoding="utf-8")
    return {"error": message[:2000], "rank": rank, "traceback": text[-20_000:]}


def _strip_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback that begins in the script, without the frames of the hooks."""
    script_frames = []
    while frames is not None:
        if not frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            script_frames.append(frames)
        frames = frames.tb_next
    next_traceback: TracebackType | None = None
    for frame in reversed(script_frames):
        next_traceback = TracebackType(next_traceback, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return next_traceback


def append_state(run: RunDirectory, state: str, reason: str) -> None:
    """Write a state of a run that has no supervisor."""
    with contextlib.closing(EventFile(run.events)) as file:
        file.append([(time.time(), "state", {"state": state, "reason": reason})])


def end(exit_code: int) -> NoReturn:
    """End the process as Python does, but without unloading torch.

    If the script has not destroyed its process group, the group's destructor can abort the process after a
    success.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - waits for the script's threads
    atexit._run_exitfuncs()  # noqa: SLF001 - the script may have registered some
    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
