"""Endpoints of "Run my script": read and start a script, check an interpreter, return a run's code."""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile, NotAllowedError
from ddp_gui.background.workers import STARTS
from ddp_gui.operations import Rate, operation
from ddp_gui.plan import plan as plan_module
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.runs.runs import RunStore
from ddp_gui.script import completion, reader
from trainers.contract import code as code_module
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError, Problem
from trainers.contract.config.options import plain_path
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local import sandbox
from trainers.files.json_files import write_json_atomically
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment
from trainers.machine.os_errors import explain

MAX_TEXT = 500_000
# Maximum size, because requests are limited to 1 MB; users can give a path to larger code.
MAX_SENT_BYTES = 700_000
STARTS_RATE = Rate("a start", 10)
CHECKS_RATE = Rate("a check of an interpreter", 10)
RUNS_SCRIPTS = "who may run scripts"
CHECK_TIMEOUT_S = 90.0
OLDEST_TORCH = (2, 4)
_PRINT_VERSIONS = (
    "import json, sys, torch; from trainers.watch import recorder; "
    "print(json.dumps({'python': sys.version.split()[0], 'torch': torch.__version__, "
    "'gpus': torch.cuda.device_count()}))"
)
_WATCH_MODULE = REPOSITORY / "trainers" / "watch" / "to_copy" / "watch.py"
_FIELDS = frozenset(
    {
        "files", "entry", "arguments", "ranks", "start", "python", "environment", "folder", "on_cpu",
        "name", "hang_timeout_s", "on_hang", "checkpoint_every_steps",
    }
)  # fmt: skip
# Fields of the configuration that select where a run trains, for engines with such fields.
_LOCATION_FIELDS = tuple(
    name for name, setting in config_module.settings().items() if setting.topic == "where"
)


@dataclass(frozen=True, kw_only=True)
class ScriptRules:
    """Who may run scripts on this page.

    Attributes:
        has_login: True if every user has a name; scripts then run in the sandbox.
        is_one_users: True if only the user who started the page can reach it.
        data_dirs: folders that scripts in the sandbox may read.
    """

    has_login: bool
    is_one_users: bool
    data_dirs: tuple[Path, ...] = ()

    def check(self, settings: ClassSettingsFile) -> None:
        """Refuse users who may not run scripts.

        Raises:
            NotAllowedError: with the reason.
        """
        if self.is_one_users:
            return
        if not self.has_login:
            raise NotAllowedError(
                "this page is open to other users without logins (--insecure), and scripts run with all "
                "rights of the user who started it. Start the page with accounts, or only for yourself"
            )
        if not rights.current_user().is_teacher and not settings.read().students_run_scripts:
            raise NotAllowedError("your teacher has not allowed students to run their own scripts")
        if (obstacle := sandbox.obstacle()) is not None:
            raise NotAllowedError(
                f"with logins, scripts run only in a sandbox, but {obstacle}: ask the administrator"
            )


@dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    """A script that can be started: its configuration and its code."""

    config: Config
    device_kind: str
    files: Mapping[str, bytes]
    readable: tuple[str, ...] | None = None

    def note(self, run: RunDirectory) -> None:
        """Write the code and the rules of its sandbox into a new run's folder."""
        code_module.write(run.path, self.files)
        if self.readable is not None:
            write_json_atomically(run.path / sandbox.RECORD_FILE, {"readable": list(self.readable)})


@dataclass
class ScriptApi:
    """The endpoints; results are JSON values."""

    store: RunStore
    scheduler: Scheduler
    rules: ScriptRules

    @operation()
    def script_page(self) -> dict[str, Any]:
        """Return facts for the page: ranks, GPUs, interpreter, and the reason if scripts are refused."""
        machine = self.scheduler.capacity()
        refused = None
        try:
            self.rules.check(self.store.class_settings)
        except NotAllowedError as error:
            refused = str(error)
        return {
            "refused": refused,
            "num_gpus": machine.num_gpus,
            "most_ranks": machine.max_ranks("auto"),
            "ranks": machine.default_ranks(),
            "place": machine.place,
            "where": self._location_controls(),
            "may_name_paths": self.rules.is_one_users,
            "most_bytes": MAX_SENT_BYTES,
            "python": sys.executable,
            "watch_module": _WATCH_MODULE.read_text(encoding="utf-8"),
        }

    @operation()
    def read_script(self, text: str) -> dict[str, Any]:
        """Analyse a script without running it: options, start, requests for GPUs, and missing definitions."""
        if len(text) > MAX_TEXT:
            raise ValueError(f"text has {len(text):,} characters; allowed: at most {MAX_TEXT:,}")
        completed = completion.complete(text)
        return {**reader.read(text).to_json(), "completed": None if completed is None else vars(completed)}

    @operation(method_checks=RUNS_SCRIPTS)
    def open_script(self, path: str = "", zip_base64: str = "") -> dict[str, Any]:
        """Return the files of a script on this machine or in a zip file, as text if possible."""
        self.rules.check(self.store.class_settings)
        if path:
            files, entry, folder = self._from_path(path)
        else:
            files, entry, folder = files_of_zip(zip_base64), None, ""
        return {"files": _to_text(files), "entry": entry or _guess_entry(files), "folder": folder}

    @operation(method_checks=RUNS_SCRIPTS, rate=CHECKS_RATE)
    def check_python(self, path: str) -> dict[str, Any]:
        """Start an interpreter once; return its versions of Python and torch and its number of GPUs."""
        self.rules.check(self.store.class_settings)
        refuse_paths(self.rules, {"python": path})
        return _read_versions(path or sys.executable)

    @operation(method_checks=RUNS_SCRIPTS, rate=STARTS_RATE, counts_itself=True, workers=STARTS)
    def start_script(self, script: dict[str, Any]) -> dict[str, Any]:
        """Start or queue a script; see docs/endpoints.md for its fields. Returns the run's id and state."""
        self.rules.check(self.store.class_settings)
        plan = self.plan(script)
        STARTS_RATE.count(self)
        placed = self.scheduler.start(plan, rights.current_user().name)
        run = placed.run
        message = "Started." if placed.place is None else f"Waiting: place {placed.place} in the queue."
        state = liveness.read_status(run).state
        return {"run_id": run.run_id, "state": state, "message": message, "place": placed.place}

    @operation(run="see")
    def script_code(self, run: RunDirectory) -> dict[str, Any]:
        """Return the code of a script's run, and its settings."""
        config = run.read_config()
        files = code_module.read(run.path)
        return {
            "run_id": run.run_id,
            "files": _to_text(files),
            "entry": config.script,
            "arguments": config.script_arguments,
            "ranks": config.nproc_per_node,
            "start": config.script_start,
            "python": config.script_python,
            "environment": config.script_environment,
            "folder": config.script_folder,
            "on_cpu": config.script_on_cpu,
            "name": config.name,
            "checkpoint_every_steps": config.checkpoint_every_steps,
            **{name: getattr(config, name) for name in _LOCATION_FIELDS},
        }

    def _location_controls(self) -> list[dict[str, Any]]:
        """Return the fields that select where a run trains, for controls."""
        settings = config_module.settings()
        return [
            {
                "name": name,
                "label": settings[name].label,
                "help": settings[name].help,
                "default": field.default,
                "choices": [[choice.value, choice.label] for choice in field.choices],
                "is_several": field.is_several,
                "is_number": config_module.type_of(name)[0] is not str,
            }
            for name, field in self.scheduler.placement_fields().items()
        ]

    def plan(self, script: Mapping[str, Any]) -> ScriptPlan:
        """Validate a script with its settings.

        Raises:
            ConfigError, ValueError: naming the field, its value and the allowed values.
        """
        fields = {*_FIELDS, *_LOCATION_FIELDS}
        unknown = [name for name in script if name not in fields]
        if unknown:
            allowed = f"no field of this name; the fields are {', '.join(sorted(fields))}"
            raise ConfigError([Problem(field=str(unknown[0]), value=script[unknown[0]], allowed=allowed)])
        refuse_paths(self.rules, script)
        folder = str(script.get("folder") or "")
        files = _from_request(script.get("files"))
        entry = str(script.get("entry") or "") or _guess_entry(files) or ""
        code_module.check(files, entry)
        text = files[entry].decode("utf-8", errors="replace")
        reading = reader.read(text)
        if reading.problem is not None:
            raise ValueError(f"{entry} is not valid Python: {reading.problem}")
        if reading.uses_watch and "watch.py" not in files and entry != "watch.py":
            files = {**files, "watch.py": _WATCH_MODULE.read_bytes()}
        if folder and not Path(folder).expanduser().is_dir():
            raise ConfigError([Problem(field="folder", value=folder, allowed="a folder on this machine")])
        location_fields = {
            name: script[name] for name in _LOCATION_FIELDS if script.get(name) not in (None, "")
        }
        machine = self.scheduler.capacity(config_module.parse(location_fields))
        on_cpu = script.get("on_cpu", False)
        has_gpus = machine.num_gpus > 0 and on_cpu is not True
        raw = {
            "model": "script",
            "dataset": "script",
            "name": script.get("name") or "",
            "device": "auto" if has_gpus else "cpu",
            "nproc_per_node": script.get("ranks") or reading.num_ranks or machine.default_ranks(),
            "on_hang": script.get("on_hang") or "wait",
            "hang_timeout_s": script.get("hang_timeout_s") or 20,
            "checkpoint_every_steps": script.get("checkpoint_every_steps") or None,
            **location_fields,
            "script": entry,
            "script_arguments": script.get("arguments") or "",
            "script_start": script.get("start") or reading.start,
            "script_python": script.get("python") or "",
            "script_environment": script.get("environment") or "",
            "script_folder": folder and str(Path(folder).expanduser().absolute()),
            "script_on_cpu": on_cpu,
        }
        config = config_module.parse(raw)
        plan_module.check_num_ranks(config, machine)
        self.scheduler.check_engine_support(config)
        return ScriptPlan(
            config=config,
            device_kind=machine.device_kind(config.device),
            files=files,
            readable=None if self.rules.is_one_users else tuple(map(str, self.rules.data_dirs)),
        )

    def plan_again(self, run: RunDirectory) -> ScriptPlan:
        """Return the plan with which a script's run is resumed.

        Raises:
            NotAllowedError, ConfigError: if the current user could not start the script.
        """
        self.rules.check(self.store.class_settings)
        config = run.read_config()
        refuse_paths(self.rules, {"python": config.script_python, "folder": config.script_folder})
        if not self.rules.is_one_users and not sandbox.is_confined(run):
            raise NotAllowedError(
                "this script was started without a sandbox and cannot be resumed: start its code as a new run"
            )
        machine = self.scheduler.capacity(config)
        plan_module.check_num_ranks(config, machine)
        self.scheduler.check_engine_support(config)
        kind = machine.device_kind(config.device)
        return ScriptPlan(config=config, device_kind=kind, files=code_module.read(run.path))

    def _from_path(self, path: str) -> tuple[dict[str, bytes], str, str]:
        """Return the files of a script or a folder on this machine, the entry file, and the folder."""
        refuse_paths(self.rules, {"path": path})
        location = Path(plain_path(path)).expanduser().absolute()
        if location.is_file():
            return code_module.read_folder(location.parent, location), location.name, str(location.parent)
        if not location.is_dir():
            allowed = "a .py file or a folder on this machine"
            raise ConfigError([Problem(field="path", value=path, allowed=allowed)])
        entries = [file for file in sorted(location.glob("*.py")) if file.is_file()]
        if not entries:
            allowed = "a folder that contains a .py file"
            raise ConfigError([Problem(field="path", value=path, allowed=allowed)])
        files = code_module.read_folder(location, entries[0])
        return files, _guess_entry(files) or entries[0].name, str(location)


def refuse_paths(rules: ScriptRules, script: Mapping[str, Any]) -> None:
    """With logins, refuse paths of this machine, which would be read or executed with the page's rights."""
    for name in ("path", "python", "folder"):
        if script.get(name) and not rules.is_one_users:
            allowed = (
                "no value on a page with logins, where scripts must be uploaded and run with the page's "
                "Python"
            )
            raise ConfigError([Problem(field=name, value=script[name], allowed=allowed)])


def _from_request(value: Any) -> dict[str, bytes]:
    """Return the files of a request: text, or `{"base64": …}`."""
    if not isinstance(value, Mapping) or not value:
        allowed = 'an object of file names with their text, or {"base64": "…"}'
        raise ConfigError([Problem(field="files", value=value, allowed=allowed)])
    files = {}
    for name, content in value.items():
        if isinstance(content, str):
            files[str(name)] = content.encode()
        elif isinstance(content, Mapping) and isinstance(content.get("base64"), str):
            files[str(name)] = _decode(content["base64"])
        else:
            allowed = f'the text of {str(name)[:100]}, or {{"base64": "…"}}'
            raise ConfigError([Problem(field="files", value=content, allowed=allowed)])
    return files


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError([Problem(field="files", value=text[:40], allowed="valid base64")]) from None


def files_of_zip(text: str) -> dict[str, bytes]:
    """Return the files of a zip. If one folder contains all of them, their names omit this folder."""
    files: dict[str, bytes] = {}
    size = 0
    try:
        with zipfile.ZipFile(io.BytesIO(_decode(text))) as archive:
            for info in archive.infolist():
                is_hidden = any(
                    part.startswith((".", "__")) for part in PurePosixPath(info.filename).parts[:-1]
                )
                if info.is_dir() or is_hidden or len(files) > code_module.MAX_FILES:
                    continue
                # Measure the real size, because a zip bomb declares another size.
                with archive.open(info) as file:
                    content = file.read(code_module.MAX_BYTES - size + 1)
                size += len(content)
                if size > code_module.MAX_BYTES:
                    raise ValueError(
                        f"the zip has more than {code_module.MAX_BYTES // 2**20} MiB; allowed: less"
                    )
                files[info.filename] = content
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"the zip cannot be read: {explain(error)}") from error
    return _without_common_folder(files)


def _without_common_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    first = {name.partition("/")[0] for name in files}
    if len(first) == 1 and all("/" in name for name in files):
        return {name.partition("/")[2]: content for name, content in files.items()}
    return files


def _guess_entry(files: Mapping[str, bytes]) -> str | None:
    """Return the .py file that is most likely the one to start."""
    names = [name for name in files if name.endswith(".py")]
    usual_names = ("train.py", "main.py", "train_ddp.py", "run.py")
    for name in (*usual_names, *names):
        if name in files and (name in usual_names or b"__main__" in files[name]):
            return name
    top_level = [name for name in names if "/" not in name]
    return next(iter(top_level or names), None)


def _to_text(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return files as JSON values: text, or `{"base64": …}` if they are not UTF-8."""
    texts: dict[str, Any] = {}
    for name, content in files.items():
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError:
            texts[name] = {"base64": base64.b64encode(content).decode()}
    return texts


def _read_versions(path: str) -> dict[str, Any]:
    """Start an interpreter; return its versions, or raise ValueError with the reason."""
    program = Path(plain_path(path)).expanduser()
    allowed = "the path of a python with torch 2.4 or newer and Python 3.11 or newer"
    if not program.is_absolute() or not os.access(program, os.X_OK) or program.is_dir():
        raise ConfigError([Problem(field="python", value=path, allowed=allowed)])
    try:
        process = subprocess.run(
            [str(program), "-c", _PRINT_VERSIONS],
            env=environment.for_a_child({"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"}),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
        versions: dict[str, Any] = (
            json.loads(process.stdout.strip().splitlines()[-1]) if not process.returncode else {}
        )
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        allowed = f"{allowed} ({explain(error)})"
        raise ConfigError([Problem(field="python", value=path, allowed=allowed)]) from error
    if process.returncode != 0:
        last_line = (process.stderr.strip().splitlines() or ["the interpreter printed no error"])[-1][:300]
        raise ConfigError([Problem(field="python", value=path, allowed=f"{allowed} ({last_line})")])
    version = tuple(int(part) for part in str(versions["torch"]).split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        reason = f"it has torch {versions['torch']}"
        raise ConfigError([Problem(field="python", value=path, allowed=f"{allowed} ({reason})")])
    return {**versions, "path": str(program)}
