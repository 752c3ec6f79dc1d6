"""The machine check: order of its parts, progress, and stored result."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainers.check_machine import report
from trainers.check_machine.checks import all_reduce, devices, disk, driver
from trainers.check_machine.checks.bench import Bench
from trainers.check_machine.checks.cancelling import CancellableWait, CancelledError
from trainers.check_machine.checks.devices import CheckDevices, UnavailableError
from trainers.check_machine.checks.driver import Nvidia, Probe
from trainers.check_machine.checks.findings import REPORT_HINT, Finding, Outcome, all_passed, compare, summary
from trainers.check_machine.checks.training import DdpChecks, check_strategy
from trainers.check_machine.report import PrivateValues, scrub
from trainers.check_machine.scratch import exclusive_lock, work_folder
from trainers.contract.check_files import JOB_LIMIT_S, CheckFiles
from trainers.contract.rundir import RunDirectory, is_run_id
from trainers.machine import cuda_environment
from trainers.machine.os_errors import explain

# Maximum length of external text in a finding; complete logs are in the report.
MAX_DETAIL_CHARS = 1_000
_FIRST = {
    "driver": "Driver, wheel and card",
    "file_system": "File system of the runs",
    "disk": "Disk of the runs",
}
_DDP = {
    "all_reduce": "All-reduce between the ranks",
    "checkpoint": "DDP trains and saves",
    "kill": "A rank that is killed",
    "resume": "Resume after the kill",
    "stop": "Stop",
    "exact": "Resume equals an uninterrupted run",
}


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of a check.

    Attributes:
        device: `auto`, `cpu` or `cuda`.
        num_ranks: None: all free GPUs, or two CPU ranks.
        except_gpus: UUIDs of GPUs to exclude.
        job_limit_s: Time after which a job counts as hanging.
    """

    check_id: str
    device: str = "auto"
    num_ranks: int | None = None
    except_gpus: tuple[str, ...] = ()
    job_limit_s: float = JOB_LIMIT_S


class MachineCheck:
    """One check of this machine, from its first job to its stored result.

    Args:
        report_state: Called with the complete state after each change.
    """

    def __init__(
        self,
        runs_dir: Path,
        options: CheckOptions,
        waiter: CancellableWait,
        report_state: Callable[[dict[str, Any], Finding | None], None],
    ) -> None:
        self._runs_dir = runs_dir
        self._options = options
        self._waiter = waiter
        self._report = report_state
        self._files = CheckFiles(runs_dir)
        self._findings = {name: Finding(id=name, title=title) for name, title in (_FIRST | _DDP).items()}
        self._devices: CheckDevices | None = None
        self._probe = Probe()
        self._started_unix_s = time.time()
        self._started = time.monotonic()
        self._had_other_runs = False
        self._last_check: dict[str, Any] | None = None
        self._state = "running"
        self._storing_error = ""
        self._versions = report.versions()
        self._known = PrivateValues.here(runs_dir)

    def run(self) -> bool:
        """Run all checks; return True if all passed.

        Raises:
            ValueError: If another check is running, or the requested devices are not available.
            OSError: If the check's folder cannot be created.
        """
        self._runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive_lock(self._files):
            try:
                with work_folder(self._files) as folder, contextlib.closing(self._checks(folder)) as checks:
                    for name, check in checks:
                        self._run_check(name, check)
                self._state = "done"
            except CancelledError:
                self._cancel()
            finally:
                if self._state == "running":  # an internal error occurred between two checks
                    self._state = "failed"
                # Store the result after removing the jobs' folder, which frees space on a full disk.
                if self._has_begun():
                    self._store()
        self._report(self.to_json(), None)
        return self._state == "done" and all_passed(list(self._findings.values()))

    def _has_begun(self) -> bool:
        return any(
            finding.seconds is not None or finding.state == "cancelled" for finding in self._findings.values()
        )

    def _store(self) -> None:
        """Store the findings. If this fails, add the reason to the summary."""
        text = report.write(self.to_json(), list(self._findings.values()))
        try:
            self._files.keep(self.to_json(with_logs=True), text)
        except OSError as error:
            self._storing_error = f" The result could not be saved: {error.strerror}."

    def to_json(self, *, with_logs: bool = False) -> dict[str, Any]:
        """Return the state of the check for the page and for scripts."""
        findings = list(self._findings.values())
        now = next((finding.title for finding in findings if finding.state == "running"), None)
        return {
            "check_id": self._options.check_id,
            "state": self._state,
            "now": now,
            "device": None if self._devices is None else self._devices.description,
            "device_kind": None if self._devices is None else self._devices.kind,
            "num_ranks": None if self._devices is None else self._devices.num_ranks,
            "had_company": self._had_other_runs,
            "started_unix_s": self._started_unix_s,
            "took_s": time.monotonic() - self._started,
            "compared_with_unix_s": None if self._last_check is None else self._last_check["started_unix_s"],
            "summary": summary(findings) + self._storing_error,
            "versions": self._versions,
            "findings": [_finding_json(finding, with_log=with_logs) for finding in findings],
        }

    def _checks(self, folder: Path) -> Generator[tuple[str, Callable[[], Outcome]]]:
        """Yield each check with its ID. The first check determines the strategies."""
        yield "driver", self._check_driver
        yield "file_system", partial(disk.check_file_system, folder)
        yield "disk", partial(disk.check_disk, folder, self._waiter)
        problem = self._jobs_problem()
        if self._devices is None or problem:
            for name, finding in list(self._findings.items()):
                if finding.state == "waiting":
                    yield name, partial(Outcome.not_checked, problem or "")
            return
        yield "all_reduce", partial(self._check_all_reduce, folder, self._devices)
        bench = Bench(folder, self._devices, self._waiter, self._options.job_limit_s)
        try:
            ddp = DdpChecks(bench)
            for name, check in (
                ("checkpoint", ddp.checkpoint),
                ("kill", ddp.kill),
                ("resume", ddp.resume),
                ("stop", ddp.stop),
                ("exact", ddp.exact),
            ):
                yield name, partial(bench.run_guarded, check)
            for strategy in self._other_strategies():
                check = partial(check_strategy, bench, strategy, ddp.losses)
                yield f"strategy_{strategy['name']}", partial(bench.run_guarded, check)
        finally:
            bench.end_job()

    def _check_driver(self) -> Outcome:
        """Check whether torch can use the idle GPUs, and choose the devices of the jobs."""
        gpus = devices.sample(self._options.except_gpus)
        variables = cuda_environment.only(gpu.uuid for gpu in gpus.free)
        self._probe = driver.ask_torch(variables, self._waiter)
        if (obstacle := self._probe.obstacle) is not None:
            obstacle = replace(obstacle, reason=scrub(obstacle.reason, self._known))
            self._probe = replace(self._probe, obstacle=obstacle)
        outcome, gpu_problem = driver.judge(Nvidia.read(), self._probe, num_free=len(gpus.free))
        usable_gpus = devices.exclude_unusable(gpus, self._probe.uuids)
        self._devices = devices.choose(
            self._options.device, self._options.num_ranks, usable_gpus, gpu_problem
        )
        self._last_check = _find_comparable(self._files.read(), self._devices)
        for strategy in self._other_strategies():
            name = f"strategy_{strategy['name']}"
            self._findings[name] = Finding(id=name, title=f"Strategy {strategy['label']}")
        return outcome

    def _jobs_problem(self) -> str | None:
        """Return why no job can be started, or None."""
        if self._devices is None:
            return "The usable devices could not be determined."
        if self._findings["disk"].state == "failed":
            return "Jobs cannot write to the runs directory."
        return None

    def _other_strategies(self) -> list[Any]:
        return [strategy for strategy in self._probe.strategies if strategy["name"] != "ddp"]

    def _check_all_reduce(self, folder: Path, chosen_devices: CheckDevices) -> Outcome:
        if chosen_devices.num_ranks < all_reduce.MIN_RANKS:
            return Outcome.skipped("A single rank does not communicate.")
        limit_s = self._options.job_limit_s
        check = partial(
            all_reduce.check_all_reduce,
            folder,
            chosen_devices.kind,
            chosen_devices.num_ranks,
            chosen_devices.environment,
            self._waiter,
            limit_s,
        )
        return Bench(folder, chosen_devices, self._waiter, limit_s).run_guarded(check)

    def _run_check(self, name: str, check: Callable[[], Outcome]) -> None:
        """Run one check and record its outcome and duration."""
        self._findings[name] = replace(self._findings[name], state="running")
        self._report(self.to_json(), None)
        started = time.monotonic()
        try:
            outcome = check()
        except (CancelledError, UnavailableError):
            raise
        except OSError as error:
            outcome = disk.failure(error)
        except Exception as error:  # noqa: BLE001 - a fault in one check, such as a plugin's, is a finding
            summary_text = "The check itself failed:"
            detail = f"{type(error).__name__}: {explain(error)}"
            log = traceback.format_exc()
            outcome = Outcome.failed(summary_text, REPORT_HINT, detail=detail, log=log)
        detail = scrub(outcome.detail, self._known)[:MAX_DETAIL_CHARS]
        outcome = replace(
            outcome, words=f"{outcome.words} {detail}".rstrip(), log=scrub(outcome.log, self._known)
        )
        seconds = time.monotonic() - started
        finding = replace(self._findings[name], **vars(outcome), seconds=seconds)
        finding = replace(finding, compared=self._compare(finding))
        self._findings[name] = finding
        self._report(self.to_json(), finding)

    def _cancel(self) -> None:
        self._state = "cancelled"
        for name, finding in self._findings.items():
            if finding.state in ("waiting", "running"):
                self._findings[name] = replace(finding, state="cancelled")

    def _compare(self, finding: Finding) -> str:
        """Describe how a finding differs from the last check on the same number of devices of this kind."""
        self._had_other_runs = self._had_other_runs or is_any_run_live(self._runs_dir)
        if self._last_check is None:
            return ""
        last_finding = next(
            (
                stored_finding
                for stored_finding in self._last_check["findings"]
                if stored_finding["id"] == finding.id
            ),
            None,
        )
        were_both_alone = not self._had_other_runs and self._last_check.get("had_company") is False
        return compare(finding, last_finding, are_times_comparable=were_both_alone)


def is_any_run_live(runs_dir: Path) -> bool:
    """True if a run is live, so that its processes share the machine with the check."""
    folders = (path for path in runs_dir.iterdir() if is_run_id(path.name))
    return any(RunDirectory(path).is_locked() for path in folders if path.is_dir())


def _find_comparable(checks: list[dict[str, Any]], current_devices: CheckDevices) -> dict[str, Any] | None:
    """Return the latest complete check on the same number of devices of this kind."""
    comparable = [
        check
        for check in checks
        if (check.get("state"), check.get("device_kind"), check.get("num_ranks"))
        == ("done", current_devices.kind, current_devices.num_ranks)
    ]
    return comparable[-1] if comparable else None


def _finding_json(finding: Finding, *, with_log: bool) -> dict[str, Any]:
    content = finding.to_json()
    if not with_log:
        del content["log"]
    return content
