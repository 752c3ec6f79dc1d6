"""Published file formats of the engines: the parts that concern the files created here.

Contains only field names, types and limits, in the notation of JSON Schema. `additionalProperties` is False
if the engine rejects or drops unknown fields.
"""

from __future__ import annotations

from typing import Any


def fields(required: tuple[str, ...] = (), **known: Any) -> dict[str, Any]:
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "properties": known,
        "required": list(required),
        "additionalProperties": False,
    }


def some(item: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": item} | ({} if most is None else {"maxItems": most})


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
INT32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}

# Kubernetes quantity (k8s.io/apimachinery, as in the definition of resourcesPerNode below).
_QUANTITY = {
    "anyOf": [
        {"type": "integer"},
        {
            "type": "string",
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
            r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        },
    ]
}
_QUANTITIES = {"type": "object", "additionalProperties": _QUANTITY}
_NAME = {"type": "string", "minLength": 1, "maxLength": 253}
_WORDS = some({"type": "string", "maxLength": 65536}, 128)

_POD = fields(
    volumes=some(
        fields(("name",), name=TEXT, persistentVolumeClaim=fields(("claimName",), claimName=TEXT)), 128
    ),
    containers=some(
        fields(
            ("name",),
            name=_NAME,
            volumeMounts=some(fields(("name", "mountPath"), name=TEXT, mountPath=TEXT), 128),
        ),
        64,
    ),
)
_JOB = fields(
    ("name",),
    name=_NAME | {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    template=fields(spec=fields(template=fields(spec=_POD))),
)

# Kubeflow Trainer: github.com/kubeflow/trainer, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml
# (commit 0f13bb7a0197) and pkg/apis/trainer/v1alpha1/trainjob_types.go (commit 0015772c282d). Both have
# runtimePatches, which replaced podTemplateOverrides in release 2.2.0.
TRAIN_JOB = fields(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"enum": ["trainer.kubeflow.org/v1alpha1"]},
    kind={"enum": ["TrainJob"]},
    metadata=fields(
        ("name",), name={"type": "string", "maxLength": 63, "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?$"}
    ),
    spec=fields(
        ("runtimeRef",),
        runtimeRef=fields(("name",), name=_NAME, apiGroup=_NAME, kind=_NAME),
        trainer=fields(
            image={"type": "string", "maxLength": 500},
            command=_WORDS,
            args=_WORDS,
            numNodes=INT32,
            numProcPerNode=INT32,
            resourcesPerNode=fields(limits=_QUANTITIES, requests=_QUANTITIES),
        ),
        runtimePatches=some(
            fields(
                ("manager",),
                manager=_NAME,
                trainingRuntimeSpec=fields(
                    template=fields(spec=fields(replicatedJobs=some(_JOB, 100))),
                ),
            ),
            16,
        ),
    ),
)

# SkyPilot: github.com/skypilot-org/skypilot, sky/utils/schemas.py (commit 00052dfe0d13): get_task_schema and
# get_resources_schema; the pattern of a name is from sky/task.py.
SKYPILOT_TASK = fields(
    name={"type": "string", "pattern": r"^[a-z0-9]+(?:[._-]{1,2}[a-z0-9]+)*$"},
    workdir={"anyOf": [TEXT, fields(("url",), url=TEXT, ref=TEXT)]},
    num_nodes=WHOLE,
    resources={"type": "object"},  # see SKYPILOT_RESOURCES
    file_mounts={"type": "object"},
    setup=TEXT,
    run=TEXT,
    envs={
        "type": "object",
        "patternProperties": {"^[a-zA-Z_][a-zA-Z0-9_]*$": {"type": ["string", "null"]}},
        "additionalProperties": False,
    },
    volumes={"type": "object"},
)
_ACCELERATORS = {
    "anyOf": [
        TEXT,
        {"type": "object", "additionalProperties": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
        some(TEXT),
    ]
}
SKYPILOT_RESOURCES = fields(
    accelerators=_ACCELERATORS,
    cpus={"anyOf": [TEXT, {"type": "number"}]},
    memory={"anyOf": [TEXT, {"type": "number"}]},
    use_spot={"type": "boolean"},
)
