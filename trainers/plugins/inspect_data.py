"""Inspects the user's own data and prints one JSON object: task, problems, preview and suitable models.

    python -m trainers.plugins.inspect_data --path PATH [--label-column C] [--task T] [--skip-unreadable]
        [--images-path FOLDER] [--reading JSON] [--sequence-length N] [--prepare]

The page neither imports torch nor reads data, so it starts this short-lived process. Small data is prepared
immediately. For larger data, a sample of the images is read and nothing is prepared, unless --prepare is
given. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import signal
import sys
from dataclasses import asdict
from typing import Any

from trainers import registry
from trainers.contract.config.sections import TASKS
from trainers.data.dataset import DataOptions, DataSpec, NotInstalledError
from trainers.data.own import cache, processes
from trainers.data.own.dataset import Own
from trainers.data.own.images import Images
from trainers.data.own.problems import DataError, DataProblem, Problems
from trainers.data.own.recognise import AnyKind
from trainers.machine.os_errors import explain
from trainers.plugins import catalog, memory

SMALL_FILE_BYTES = 64 * 2**20
SMALL_NUM_IMAGES = 2_000
NAME = "own"


def main() -> None:
    """Print the result of the inspection."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", required=True)
    parser.add_argument("--label-column", default="")
    parser.add_argument("--task", default="auto", choices=("auto", *TASKS))
    parser.add_argument("--skip-unreadable", action="store_true")
    parser.add_argument("--images-path", default="", help="the folder of the images that a table refers to")
    parser.add_argument(
        "--reading", default="", help="JSON with changes to how a table is read (docs/own-data.md)"
    )
    parser.add_argument("--sequence-length", type=int)
    parser.add_argument("--prepare", action="store_true", help="prepare the data, even if it is large")
    parser.add_argument("--time-limit-s", type=float, default=processes.PREPARE_S)
    arguments = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S%z",
        force=True,  # the parent of a forked process uses a higher log level
    )
    options = DataOptions(
        path=arguments.path,
        label_column=arguments.label_column,
        task=arguments.task,
        skip_unreadable=arguments.skip_unreadable,
        images_path=arguments.images_path,
        reading=arguments.reading,
        sequence_length=arguments.sequence_length,
    )
    # The page cancels an inspection by SIGTERM; turn it into a normal exit, which removes incomplete files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answer = inspect(options, prepare=arguments.prepare, time_limit_s=arguments.time_limit_s)
    # Use ASCII, which gives valid JSON also for file names that are not valid Unicode.
    json.dump(answer, sys.stdout, allow_nan=False)
    print()


def inspect(
    options: DataOptions, *, prepare: bool, time_limit_s: float = processes.PREPARE_S
) -> dict[str, Any]:
    """Return the result of the inspection as JSON values."""
    data = Own(options)
    answer: dict[str, Any] = {
        "ok": False,
        "kind": "",
        "task": None,
        "fingerprint": "",
        "problems": [],
        "num_problems": 0,
        "num_to_leave_out": 0,
        "columns": [],
        "label_column": None,
        "preview": {},
        "is_prepared": False,
        "is_estimate": False,
        "dataset": None,
    }
    extra: list[DataProblem] = []
    try:
        with processes.bounded(options.path, seconds=time_limit_s):
            spec = _inspect(data, options, answer, prepare=prepare)
            if spec is not None:
                answer["dataset"] = _describe(spec, data.problems) | {"prepared": data.fingerprint}
    except DataError as error:
        if not data.problems.num_faults:  # the data is not the cause, but for example a full disk
            extra = list(error.problems)
    except NotInstalledError as error:
        package = (error.requirement or "").partition("==")[0]
        extra = [DataProblem(where="a package", message=str(error), package=package)]
    except OSError as error:
        message = f"the rest cannot be read ({explain(error)})."
        extra = [DataProblem(where=str(error.filename or options.path), message=message, hint="Try again.")]
    problems = [*extra, *data.problems.shown]
    answer["problems"] = [_clean(asdict(problem)) for problem in problems]
    answer["num_problems"] = len(extra) + data.problems.num_problems
    answer["num_to_leave_out"] = data.problems.num_to_leave_out
    answer["ok"] = answer["dataset"] is not None and not any(problem.is_fatal for problem in problems)
    return answer


def _inspect(own: Own, options: DataOptions, answer: dict[str, Any], *, prepare: bool) -> DataSpec | None:
    kind = own.kind
    answer["kind"] = kind.name
    answer["fingerprint"] = own.fingerprint
    inspection: Any = kind.inspect(own.problems)
    answer |= _clean(kind.about(inspection))
    own.problems.check(options.path)
    is_there = cache.find(own.fingerprint) is not None
    estimate = None if prepare or is_there or _is_small(kind, answer) else kind.estimate(inspection)
    if estimate is not None:
        answer["is_estimate"] = True
        return estimate
    own.prepare_from(inspection)
    answer["is_prepared"] = True
    return own.spec()


def _is_small(kind: AnyKind, answer: dict[str, Any]) -> bool:
    if isinstance(kind, Images):
        return bool(answer["preview"]["num_images"] <= SMALL_NUM_IMAGES)
    return kind.num_bytes() <= SMALL_FILE_BYTES


def _describe(spec: DataSpec, problems: Problems) -> dict[str, Any]:
    registry.discover_all()
    counts, needs = {}, {}
    for entry in registry.models().values():
        if spec.task not in entry.tasks or entry.needs_path or catalog.missing_packages(entry.requires):
            continue
        try:
            networks = {size: catalog.on_meta(entry, spec, size) for size in entry.sizes}
            counts[entry.name] = {size: catalog.num_parameters(each) for size, each in networks.items()}
            needs[entry.name] = {size: memory.needs_of(each, spec) for size, each in networks.items()}
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; it is reported
            problems.note(f"model {entry.name}", f"it cannot be built for this data ({explain(error)}).")
    description = asdict(catalog.describe_dataset(NAME, spec))
    described: dict[str, Any] = _clean({**description, "models": counts, "memory": needs})
    return described


def _clean(value: Any) -> Any:
    """Return JSON values that every reader accepts: replaces invalid bytes, and infinities by null."""
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


if __name__ == "__main__":
    main()
