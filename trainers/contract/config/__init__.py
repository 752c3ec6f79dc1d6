"""The configuration of a run: every field once, with its label, help and allowed range.

The form, the endpoints, `config.json` and the worker all read this one definition. Field names are
those of torchrun and torch. Changing one is a new `SCHEMA_VERSION`.
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal

from trainers.contract.config import settings as settings_module
from trainers.contract.config.settings import ConfigError, Problem, Setting

__all__ = ["Config", "ConfigError", "Problem", "Setting", "parse"]

TASKS = (
    "image_classification",
    "text_classification",
    "language_modelling",
    "tabular_classification",
    "tabular_regression",
)
SCHEMA_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)  # what later ones added has defaults, so older configurations mean the same
MAX_NAME_COMPARED = 100
MAX_FIELDS = 200

# How many ranks hold one copy of the model between them; every strategy says which.
RanksPerReplica = Literal["one", "all", "tensor_parallel_size"]


def _setting(default: Any, **about: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(**about)})


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run's whole configuration; frozen, every field with a default."""

    model: str = _setting("cnn", label="Model", help="The network that learns.", catalog="models")
    dataset: str = _setting(
        "fashion_mnist", label="Data set", help="What it learns from.", catalog="datasets"
    )
    nproc_per_node: int = _setting(
        2,
        label="GPUs",
        help="How many processes train together: one per GPU, or ranks on the CPU where there is none.",
        minimum=1,
        maximum=1024,
    )
    batch_size: int = _setting(
        64,
        label="Batch per GPU",
        help="Samples each GPU works through in one step.",
        minimum=1,
        maximum=65536,
    )
    learning_rate: float = _setting(
        0.002, label="Learning rate", help="How far each step moves the weights.", above=0, maximum=100
    )
    num_epochs: int = _setting(
        20,
        label="Epochs",
        help="How often the whole data set is gone through.",
        minimum=1,
        maximum=100_000,
    )
    seed: int = _setting(
        0,
        label="Seed",
        help="The same seed gives the same weights, data order and result.",
        topic="reproduce",
        minimum=0,
        maximum=2**31 - 1,
    )
    # What it learns from
    data_path: str = _setting(
        "",
        label="Path of your data",
        help="For your own data: a folder or zip of images in class folders, a table, or a text file.",
        topic="data",
        max_length=4096,
    )
    label_column: str = _setting(
        "",
        label="Label column",
        help="The column to be predicted; empty: one called label, target or class, else the last.",
        topic="data",
    )
    data_task: str = _setting(
        "auto",
        label="What your data is",
        help="auto looks at the data and says what it took it for.",
        topic="data",
        choices=("auto", *TASKS),
    )
    skip_unreadable: bool = _setting(
        False,
        label="Leave out unreadable samples",
        help="Off: your data is refused with the names of the samples that cannot be read.",
        topic="data",
    )
    sequence_length: int | None = _setting(
        None,
        label="Sequence length",
        help="Words or characters the model sees at once; empty: what suits the data set.",
        topic="data",
        minimum=2,
        maximum=65536,
    )
    random_flip: bool = _setting(
        False,
        label="Flip images",
        help="Mirrors half of the training images left to right. Not for digits or letters.",
        topic="data",
    )
    random_crop: int = _setting(
        0,
        label="Crop images, pixels",
        help="Moves training images by up to this many pixels each way.",
        topic="data",
        minimum=0,
        maximum=256,
    )
    normalise: bool = _setting(
        True,
        label="Normalise",
        help="Brings inputs to mean 0 and deviation 1, which learns faster.",
        topic="data",
    )
    # The network
    model_size: str = _setting(
        "", label="Model size", help="Empty: the model's usual size.", topic="model", catalog="model_sizes"
    )
    pretrained_path: str = _setting(
        "",
        label="Folder of a trained model",
        help="For fine-tuning: a local folder in Hugging Face format.",
        topic="model",
        max_length=4096,
    )
    hub_offline: bool = _setting(
        True,
        label="Stay off the model hub",
        help="On: nothing is fetched from the internet (HF_HUB_OFFLINE=1).",
        topic="model",
    )
    # How it learns
    optimizer: str = _setting(
        "adamw",
        label="Optimizer",
        help="How gradients become steps. AdamW suits most; SGD is the classic for image networks.",
        topic="optimizer",
        choices=("adamw", "adam", "sgd"),
    )
    momentum: float = _setting(
        0.9,
        label="Momentum",
        help="How much of the last step goes on into the next.",
        only_with=("optimizer", ("sgd",)),
        topic="optimizer",
        minimum=0,
        maximum=0.9999,
    )
    nesterov: bool = _setting(
        False,
        label="Nesterov",
        help="Looks ahead along the momentum.",
        only_with=("optimizer", ("sgd",)),
        topic="optimizer",
    )
    weight_decay: float = _setting(
        0.01,
        label="Weight decay",
        help="Pulls weights towards zero; norms and biases are left alone.",
        topic="optimizer",
        minimum=0,
        maximum=10,
    )
    lr_schedule: str = _setting(
        "constant",
        label="Learning rate schedule",
        help="How the rate changes over the run, after the warm-up.",
        topic="optimizer",
        choices=("constant", "cosine", "linear", "step", "one_cycle"),
    )
    warmup_steps: int = _setting(
        0,
        label="Warm-up steps",
        help="The rate climbs from near zero over this many steps.",
        topic="optimizer",
        minimum=0,
        maximum=10**9,
    )
    warmup_ratio: float = _setting(
        0.0,
        label="Warm-up share",
        help="The same as a share of the run (0.05 is 5%); used when warm-up steps is 0.",
        topic="optimizer",
        minimum=0,
        maximum=1,
    )
    lr_step_epochs: int = _setting(
        10,
        label="Step every … epochs",
        help="How many epochs between two drops of the rate.",
        only_with=("lr_schedule", ("step",)),
        topic="optimizer",
        minimum=1,
        maximum=100_000,
    )
    lr_gamma: float = _setting(
        0.1,
        label="Step factor",
        help="What each drop multiplies the rate by.",
        only_with=("lr_schedule", ("step",)),
        topic="optimizer",
        above=0,
        maximum=1,
    )
    scale_lr: bool = _setting(
        False,
        label="Scale the rate with the GPUs",
        help="Linear scaling rule: rate × copies of the model × accumulation. Goes well with a warm-up.",
        topic="optimizer",
    )
    gradient_accumulation_steps: int = _setting(
        1,
        label="Accumulate gradients over",
        help="Batches each GPU adds up before one step: a larger global batch in the same memory.",
        topic="optimizer",
        minimum=1,
        maximum=65536,
    )
    max_grad_norm: float | None = _setting(
        None,
        label="Clip gradients at norm",
        help="Longer gradients are shortened to this; empty: never.",
        topic="optimizer",
        above=0,
        maximum=1e9,
    )
    label_smoothing: float = _setting(
        0.0,
        label="Label smoothing",
        help="Trains towards being a little unsure: 0.1 is usual; 0 is off.",
        topic="optimizer",
        minimum=0,
        maximum=0.99,
    )
    # How long, how often
    max_steps: int | None = _setting(
        None,
        label="Stop after steps",
        help="The run ends at this step; empty: no limit.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    eval_every_steps: int | None = _setting(
        None,
        label="Evaluate every … steps",
        help="Empty: at the end of every epoch.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    early_stopping_patience: int | None = _setting(
        None,
        label="Stop early after",
        help="Evaluations without a better result before the run ends by itself; empty: never.",
        topic="schedule",
        minimum=1,
        maximum=100_000,
    )
    checkpoint_every_steps: int | None = _setting(
        None,
        label="Checkpoint every … steps",
        help="Empty: at the end of every epoch.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    keep_last_checkpoints: int | None = _setting(
        3,
        label="Keep the newest … checkpoints",
        help="Older ones made by the schedule are deleted; empty: keep all.",
        topic="schedule",
        minimum=1,
        maximum=100_000,
    )
    keep_best_checkpoint: bool = _setting(
        True,
        label="Keep the best checkpoint",
        help="Saves whenever an evaluation is the best so far, and keeps the best one.",
        topic="schedule",
    )
    hang_timeout_s: float = _setting(
        20.0,
        label="A hang after, s",
        help="When nothing has come from a rank for so long and it does not work either, the run hangs.",
        topic="schedule",
        minimum=2,
        maximum=86_400,
    )
    on_hang: str = _setting(
        "end",
        label="When it hangs",
        help="end: the run fails and says where it stood; wait: it says so and waits until you stop it.",
        topic="schedule",
        choices=("end", "wait"),
    )
    # How the ranks share the work
    strategy: str = _setting(
        "ddp",
        label="Strategy",
        help="How the work is spread over the ranks.",
        topic="parallel",
        catalog="strategies",
    )
    tensor_parallel_size: int = _setting(
        2,
        label="Ranks per model copy",
        help="How many ranks hold one copy of the model between them.",
        only_with=("strategy", ("data_tensor",)),
        topic="parallel",
        minimum=1,
        maximum=1024,
    )
    pipeline_microbatches: int = _setting(
        4,
        label="Pipeline pieces",
        help="The pieces a batch is cut into, so that the stages can work at once.",
        only_with=("strategy", ("pipeline",)),
        topic="parallel",
        minimum=1,
        maximum=1024,
    )
    bucket_cap_mb: int = _setting(
        25,
        label="Bucket, MB",
        help="Gradients are sent in buckets of this size.",
        only_with=("strategy", ("ddp", "zero1")),
        topic="parallel",
        minimum=1,
        maximum=4096,
    )
    gradient_as_bucket_view: bool = _setting(
        True,
        label="Gradients live in the buckets",
        help="Saves one copy of all gradients.",
        only_with=("strategy", ("ddp", "zero1")),
        topic="parallel",
    )
    static_graph: bool = _setting(
        False,
        label="Static graph",
        help="Promises that every step uses the same parameters.",
        only_with=("strategy", ("ddp", "zero1")),
        topic="parallel",
    )
    gradient_compression: str = _setting(
        "none",
        label="Compress gradients",
        help="Sends gradients in half the bits, at some loss of exactness.",
        only_with=("strategy", ("ddp", "zero1")),
        topic="parallel",
        choices=("none", "fp16", "bf16"),
    )
    sync_batchnorm: bool = _setting(
        False,
        label="SyncBatchNorm",
        help="Batch norm over the global batch instead of each GPU's own part; GPUs only.",
        topic="parallel",
    )
    # Speed
    precision: str = _setting(
        "fp32",
        label="Precision",
        help="tf32 and bf16 are faster on newer GPUs; fp16 also scales the loss so that nothing is lost.",
        topic="speed",
        choices=("fp32", "tf32", "bf16", "fp16"),
    )
    compile: bool = _setting(
        False,
        label="Compile",
        help="torch.compile: a slower start, then faster steps. Where it fails, the run does without.",
        topic="speed",
    )
    data_location: str = _setting(
        "auto",
        label="Keep the data",
        help="device: all of it beside the model; host: batch by batch; auto: device where it fits.",
        topic="speed",
        choices=("auto", "device", "host"),
    )
    num_workers: int = _setting(
        0,
        label="Loader workers",
        help="Processes a rank has for reading data that is not kept on the device.",
        topic="speed",
        minimum=0,
        maximum=256,
    )
    pin_memory: bool = _setting(
        True,
        label="Pinned memory",
        help="Makes copies to a GPU faster; does nothing on the CPU.",
        topic="speed",
    )
    prefetch_factor: int = _setting(
        2,
        label="Prefetch",
        help="Batches each loader worker keeps ready.",
        topic="speed",
        minimum=1,
        maximum=1024,
    )
    # Name, device, reproducibility
    name: str = _setting(
        "", label="Name", help="A name for the list of runs; may stay empty.", topic="reproduce"
    )
    device: str = _setting(
        "auto",
        label="Device",
        help="auto takes the GPUs where there are any, else the CPU.",
        topic="reproduce",
        choices=("auto", "cpu", "cuda"),
    )
    deterministic: bool = _setting(
        False,
        label="Deterministic",
        help="Only algorithms that give the same bits every time; can be slower.",
        topic="reproduce",
    )

    def num_replicas(self, ranks_per_replica: RanksPerReplica) -> int:
        """Return how many copies of the model see different samples."""
        sharing = {"one": 1, "all": self.nproc_per_node, "tensor_parallel_size": self.tensor_parallel_size}
        return max(1, self.nproc_per_node // sharing[ranks_per_replica])

    def global_batch(self, num_replicas: int) -> int:
        """Return the samples of all ranks together in one step."""
        return self.batch_size * num_replicas * self.gradient_accumulation_steps

    def peak_learning_rate(self, num_replicas: int) -> float:
        """Return the rate after the warm-up, by the linear scaling rule where it is on (Goyal 2017)."""
        factor = num_replicas * self.gradient_accumulation_steps if self.scale_lr else 1
        return self.learning_rate * factor

    def steps_per_epoch(self, num_train: int, num_replicas: int) -> int:
        """Return how many global batches cover the training samples."""
        return -(-num_train // self.global_batch(num_replicas))

    def num_steps(
        self, num_train: int, num_replicas: int, *, step: int = 0, epoch: int = 0, samples_in_epoch: int = 0
    ) -> int:
        """Return the last step of the run, if it goes on from here with this configuration.

        Args:
            num_train: training samples.
            step, epoch, samples_in_epoch: how far it is; the samples of this epoch are those of all ranks.
        """
        steps = step
        if epoch < self.num_epochs:
            of_this_epoch = -(-(num_train - samples_in_epoch) // self.global_batch(num_replicas))
            whole_epochs = self.num_epochs - epoch - 1
            steps += of_this_epoch + whole_epochs * self.steps_per_epoch(num_train, num_replicas)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def to_json(self) -> dict[str, Any]:
        """Return what `config.json` holds."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


class NewerVersionError(ConfigError):
    """A configuration of a version of this program that is still to come."""

    def __init__(self, version: int) -> None:
        allowed = " or ".join(str(readable) for readable in READABLE_VERSIONS)
        super().__init__([Problem(field="schema_version", value=version, allowed=allowed)])
        versions = f"schema {version}, this one knows {SCHEMA_VERSION}"
        message = f"The configuration was made by a newer version of this program ({versions})."
        self.args = (f"{message} Open it with the newer version.",)


def settings() -> dict[str, Setting]:
    """Return each field's `Setting` by name, in the order of the form."""
    return {item.name: item.metadata["setting"] for item in fields(Config)}


def default_values() -> dict[str, Any]:
    """Return each field's default by name."""
    assert all(item.default is not MISSING for item in fields(Config))
    return {item.name: item.default for item in fields(Config)}


def parse(raw: Mapping[str, Any]) -> Config:
    """Build a `Config` from JSON values; missing fields take their defaults.

    Numbers may come as text, the way a form sends them.

    Raises:
        ConfigError: naming every field that is unknown, of the wrong type or out of range.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem(field="config", value=raw, allowed="one JSON object of fields")])
    known = settings()
    # Finding out what each unknown one was meant to be takes its time.
    if len(raw) > MAX_FIELDS:
        allowed = f"an object of at most {MAX_FIELDS} fields"
        raise ConfigError([Problem(field="config", value=f"{len(raw):,} fields", allowed=allowed)])
    types_by_name = _types()
    problems = []
    values = {}
    version = raw.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        # Said alone: that such a version has other fields goes without saying.
        raise NewerVersionError(version)
    if version not in READABLE_VERSIONS:
        allowed = " or ".join(str(readable) for readable in READABLE_VERSIONS)
        problems.append(Problem(field="schema_version", value=version, allowed=allowed))
    for name, value in raw.items():
        if name == "schema_version":
            continue
        if name not in known:
            problems.append(_unknown_field(str(name), value, list(known)))
            continue
        try:
            values[name] = settings_module.coerce(value, types_by_name[name], known[name])
        except ValueError as error:
            problems.append(Problem(field=name, value=value, allowed=str(error)))
    if problems:
        raise ConfigError(problems)
    return Config(**values)


@functools.cache
def _types() -> Mapping[str, Any]:
    return typing.get_type_hints(Config)


def allowed_text(name: str) -> str:
    """Say in words what a field accepts."""
    return settings_module.allowed_text(_types()[name], settings()[name])


def is_optional(name: str) -> bool:
    """Tell whether a field may be null."""
    return type(None) in typing.get_args(_types()[name])


def value_type(name: str) -> type:
    """Return a field's type, without the null of an optional one."""
    hint = _types()[name]
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint


def _unknown_field(name: str, value: Any, known: list[str]) -> Problem:
    close = difflib.get_close_matches(name[:MAX_NAME_COMPARED], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
    return Problem(field=name, value=value, allowed=f"no field of this name; {hint}")
