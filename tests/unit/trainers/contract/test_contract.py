"""The contract between the GUI and training is frozen: these values are read from disk by other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.harness import REPOSITORY
from trainers.contract import commands, config, events, manifests, rundir
from trainers.contract import status as status_file
from trainers.engines.local import torchrun

FROZEN = REPOSITORY / "tests" / "golden" / "contract.json"
FILES = [
    "config",
    "status",
    "events",
    "commands",
    "logs",
    "checkpoints",
    "recordings",
    "lock",
    "queued",
    "granted",
]
DECISION = (
    "The contract of the run directory changed. That is a decision, not an accident: old runs and other "
    "programs read these names. When it is meant, raise config.SCHEMA_VERSION, describe the change in docs/ "
    "and CHANGELOG.md, and write the new contract: `python -m tests.unit.trainers.contract.test_contract`."
)


def contract() -> dict[str, Any]:
    """Return the entire contract as JSON values."""
    run = rundir.RunDirectory(Path("run"))
    status = rundir.Status(state="queued")
    return {
        "schema_version": config.SCHEMA_VERSION,
        "config_defaults": config.default_values(),
        "config_types": {
            name: config.type_of(name)[0].__name__ + ("|null" if config.type_of(name)[1] else "")
            for name in config.default_values()
        },
        "states": list(events.STATES),
        "live_states": sorted(events.LIVE_STATES),
        "event_common_fields": list(events.COMMON_FIELDS),
        "event_fields": {kind: list(fields) for kind, fields in events.FIELDS.items()},
        "device_fields": list(events.DEVICE_FIELDS),
        "rank_fields": list(events.RANK_FIELDS),
        "commands": list(commands.COMMAND_NAMES),
        "status_fields": [name for name in status_file.to_json(status) if name != "schema_version"],
        "files": {name: str(getattr(run, name).relative_to(run.path)) for name in FILES}
        | {"rank_log": str(run.rank_log(3).relative_to(run.path))},
        "checkpoint_format_version": manifests.FORMAT_VERSION,
        "torchrun_command": torchrun.torchrun_command(config.Config(), "RUN_DIR", 5),
    }


def test_contract_is_what_it_was() -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(contract()))
    changed = sorted(key for key in frozen.keys() | now.keys() if frozen.get(key) != now.get(key))
    assert not changed, f"{DECISION}\nChanged: {', '.join(changed)}"
    assert now == frozen, DECISION


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(contract(), indent=1) + "\n", encoding="utf-8")
