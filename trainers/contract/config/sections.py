"""The configuration's fields by subject, each with its checks."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from trainers.contract.config.options import setting
from trainers.files import typed
from trainers.files.typed import Limit

# The fields of each section have one topic.
_schedule = functools.partial(setting, topic="schedule")
_data = functools.partial(setting, topic="data")
_model = functools.partial(setting, topic="model")
_optimizer = functools.partial(setting, topic="optimizer")
_parallel = functools.partial(setting, topic="parallel")
_speed = functools.partial(setting, topic="speed")
_reproduce = functools.partial(setting, topic="reproduce")
_teaching = functools.partial(setting, topic="teaching")
_forward = functools.partial(setting, topic="forward")
_where = functools.partial(setting, topic="where")
_script = functools.partial(setting, topic="script")


@dataclass(frozen=True, kw_only=True)
class Basics:
    """The first fields of the form: model, data set, ranks, speed and duration."""

    model: str = setting("cnn", label="Model", help="The network that learns.", catalog="models")
    dataset: str = setting(
        "fashion_mnist", label="Data set", help="The data that the network learns from.", catalog="datasets"
    )
    nproc_per_node: int = setting(
        2,
        label="Ranks",
        term="rank",
        help="Ranks on each machine: one per GPU, or processes on the CPU if there is no GPU.",
        minimum=1,
        maximum=1024,
    )
    num_nodes: int = setting(
        1,
        label="Machines",
        help="How many machines train together, each with the same number of ranks. 1: only one machine.",
        topic="where",  # the form shows it only if the engine offers several machines
        minimum=1,
        maximum=1024,
    )
    batch_size: int = setting(
        64,
        label="Batch per rank",
        term="batch per rank",
        help="Samples that each rank processes in one step.",
        minimum=1,
        maximum=65536,
    )
    learning_rate: float = setting(
        0.002,
        label="Learning rate",
        term="learning rate",
        help="How far each step moves the weights.",
        above=0,
        maximum=100,
    )
    num_epochs: int = setting(
        20,
        label="Epochs",
        term="epoch",
        help="Number of passes over the training data.",
        minimum=1,
        maximum=100_000,
    )
    seed: int = setting(
        0,
        label="Seed",
        term="seed",
        help="The same seed gives the same weights, data order and result.",
        topic="reproduce",
        minimum=0,
        maximum=2**31 - 1,
    )


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a run trains, how often it evaluates and saves, and when it counts as hanging."""

    max_steps: int | None = _schedule(
        None,
        label="Stop after steps",
        help="The run ends at this step. Empty: no limit.",
        minimum=1,
        maximum=10**9,
    )
    eval_every_steps: int | None = _schedule(
        None,
        label="Evaluate every … steps",
        term="evaluation",
        help="Empty: at the end of every epoch.",
        minimum=1,
        maximum=10**9,
    )
    early_stopping_patience: int | None = _schedule(
        None,
        label="Early stopping patience",
        help="Ends the run after this many evaluations without a new best value of the main metric: "
        "accuracy for classes, RMSE for numbers, perplexity for language models. Empty: never.",
        minimum=1,
        maximum=100_000,
    )
    checkpoint_every_steps: int | None = _schedule(
        None,
        label="Checkpoint every … steps",
        term="checkpoint",
        help="Empty: at the end of every epoch.",
        minimum=1,
        maximum=10**9,
    )
    keep_last_checkpoints: int | None = _schedule(
        3,
        label="Keep the newest … checkpoints",
        help="Older periodic checkpoints are deleted. Empty: keep all.",
        minimum=1,
        maximum=100_000,
    )
    keep_best_checkpoint: bool = _schedule(
        True,
        label="Keep the best checkpoint",
        help="Saves when an evaluation is the best so far, and keeps that checkpoint.",
    )
    hang_timeout_s: float = _schedule(
        20.0,
        label="Hang timeout, s",
        term="hang",
        help="The run counts as hanging when a rank has been silent and idle for this long.",
        minimum=2,
        maximum=86_400,
    )
    on_hang: str = _schedule(
        "end",
        label="On a hang",
        help="end: the run fails and reports where each rank hangs; wait: it reports, and waits for a stop.",
        choices=("end", "wait"),
    )


TASKS = (
    "image_classification",
    "text_classification",
    "language_modelling",
    "tabular_classification",
    "tabular_regression",
)
COLUMN_KINDS = (
    "number",
    "number, decimal comma",
    "number, decimal point",
    "category",
    "text",
    "date",
    "date, day first",
    "date, month first",
    "ignored",
)
# Settings by which a user overrides how a table is read: name, type of the JSON value, and description.
READING: Mapping[str, tuple[Any, str]] = {
    "columns": (
        Mapping[str, Literal[COLUMN_KINDS]],  # type: ignore[valid-type]
        f"an object of column names with one of: {', '.join(COLUMN_KINDS)}",
    ),
    "missing": (
        Mapping[str, list[str]],
        "an object of column names with a list of the spellings that mean a missing value",
    ),
    "text": (list[str], "a list of the columns whose texts are joined into one text per row"),
    "join_labels": (bool, "true or false"),
    "label_missing": (bool, "true or false"),
    "leave_out_copies": (bool, "true or false"),
    "leave_out_rare": (bool, "true or false"),
    "leave_out_totals": (bool, "true or false"),
    "leave_out_last": (Annotated[int, Limit(low=0, high=100)], "a number of rows from 0 to 100"),
    "header": (bool, "true or false"),
    "transposed": (bool, "true or false"),
    "delimiter": (Annotated[str, Limit(least=1, most=1)], "the character between cells"),
    "encoding": (str, "the name of an encoding such as cp1252"),
    "sheet": (str, "the name of a sheet"),
}


def parse_reading(text: str) -> dict[str, Any]:
    """Return the user's overrides of how a table is read; empty if everything is detected automatically.

    Args:
        text: a JSON object, or empty.

    Raises:
        ValueError: with the allowed values.
    """
    if not text.strip():
        return {}
    allowed = f"empty, or a JSON object with any of: {', '.join(READING)}"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(allowed) from None
    if not isinstance(values, dict) or not values.keys() <= READING.keys():
        raise ValueError(allowed)
    for name, value in values.items():
        kind, description = READING[name]
        if not typed.fits(kind, value):
            raise ValueError(f"{name}: {description}")
    return values


@dataclass(frozen=True, kw_only=True)
class Data:
    """The training data."""

    data_path: str = _data(
        "",
        label="Path of your data",
        help="For your own data: a folder or zip of images in class folders, a table, or a text file.",
        max_length=4096,
        is_path=True,
    )
    label_column: str = _data(
        "",
        label="Label column",
        help="The column to predict. Empty: a column called label, target or class, else the last column.",
    )
    data_task: str = _data(
        "auto",
        label="What your data is",
        help="auto recognises the task from the data and shows what it found.",
        choices=("auto", *TASKS),
    )
    skip_unreadable: bool = _data(
        False,
        label="Leave out unreadable samples",
        help="Off: data with unreadable samples is refused, with a list of these samples.",
    )
    images_path: str = _data(
        "",
        label="Folder of the images",
        help="For a table with a column of image file names: the folder that contains them.",
        max_length=4096,
        is_path=True,
    )
    data_reading: str = _data(
        "",
        label="How your table is read",
        help="Changes in the list of columns, as JSON. Empty: as detected automatically.",
        max_length=20_000,
        check=parse_reading,
    )
    sequence_length: int | None = _data(
        None,
        label="Sequence length",
        help="Number of words or characters in each input sequence. Empty: the data set's default.",
        minimum=2,
        maximum=65536,
    )
    random_flip: bool = _data(
        False,
        label="Flip images",
        help="Mirrors half of the training images left to right. Not for digits or letters.",
    )
    random_crop: int = _data(
        0,
        label="Crop images, pixels",
        help="Shifts training images by up to this many pixels in each direction.",
        minimum=0,
        maximum=256,
    )
    normalise: bool = _data(
        True,
        label="Normalise",
        help="Scales inputs to mean 0 and standard deviation 1, which speeds up learning.",
    )


_START = re.compile(r"[^./,~\\\x00-\x1f\x7f-][^/,~\\\x00-\x1f\x7f]*/[0-9]{1,15}")


def check_start(text: str) -> None:
    """Raise ValueError with the allowed values if a text does not name a checkpoint of a run."""
    if text and not _START.fullmatch(text):
        raise ValueError("a run and the step of its checkpoint, such as digits-cnn-1/300, or empty")


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network: its size and the weights that it starts with."""

    model_size: str = _model(
        "", label="Model size", help="Empty: the model's default size.", catalog="model_sizes"
    )
    pretrained_path: str = _model(
        "",
        label="Folder of a pretrained model",
        help="For fine-tuning: a local folder in Hugging Face format.",
        max_length=4096,
    )
    hub_offline: bool = _model(
        True,
        label="Offline (no model hub)",
        help="On: nothing is downloaded (HF_HUB_OFFLINE=1).",
    )
    lora_rank: int = _model(
        0,
        label="LoRA rank",
        term="LoRA",
        help="0: trains all weights. 4 to 16 are usual: trains small adapters of this rank only, which takes "
        "less memory.",
        by_plugin="model",
        minimum=0,
        maximum=1024,
    )
    start_from: str = _model(
        "",
        label="Start from",
        help="A checkpoint of another run, as RUN_ID/STEP: the model starts with its weights and reads "
        "inputs in the same way. Empty: a new model.",
        max_length=300,
        check=check_start,
    )


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """Optimizer, learning rate schedule, accumulation and clipping."""

    optimizer: str = _optimizer(
        "adamw",
        label="Optimizer",
        term="optimizer",
        help="The rule that updates the weights. AdamW suits most models; SGD is the classic for image "
        "networks.",
        choices=("adamw", "adam", "sgd"),
    )
    momentum: float = _optimizer(
        0.9,
        label="Momentum",
        term="momentum",
        help="The share of the previous update that is added to the next one.",
        only_with=("optimizer", ("sgd",)),
        minimum=0,
        maximum=0.9999,
    )
    nesterov: bool = _optimizer(
        False,
        label="Nesterov",
        help="Computes the update one step ahead along the momentum.",
        only_with=("optimizer", ("sgd",)),
    )
    weight_decay: float = _optimizer(
        0.01,
        label="Weight decay",
        term="weight decay",
        help="Pulls weights towards zero; norms and biases are exempt.",
        minimum=0,
        maximum=10,
    )
    lr_schedule: str = _optimizer(
        "constant",
        label="Learning rate schedule",
        term="schedule",
        help="How the learning rate changes over the run, after the warm-up.",
        choices=("constant", "cosine", "linear", "step", "one_cycle"),
    )
    warmup_steps: int = _optimizer(
        0,
        label="Warm-up steps",
        term="warm-up",
        help="The learning rate rises from near zero over this many steps.",
        minimum=0,
        maximum=10**9,
    )
    warmup_ratio: float = _optimizer(
        0.0,
        label="Warm-up share",
        term="warm-up",
        help="The warm-up as a share of the run (0.05 is 5%); used if the number of warm-up steps is 0.",
        minimum=0,
        maximum=1,
    )
    lr_step_epochs: int = _optimizer(
        10,
        label="Step every … epochs",
        help="Epochs between two drops of the learning rate.",
        only_with=("lr_schedule", ("step",)),
        minimum=1,
        maximum=100_000,
    )
    lr_gamma: float = _optimizer(
        0.1,
        label="Step factor",
        help="Each drop multiplies the learning rate by this factor.",
        only_with=("lr_schedule", ("step",)),
        above=0,
        maximum=1,
    )
    scale_lr: bool = _optimizer(
        False,
        label="Scale the learning rate with the ranks",
        term="linear scaling rule",
        help="Linear scaling rule: learning rate × replicas × accumulation. Works best with a warm-up.",
    )
    gradient_accumulation_steps: int = _optimizer(
        1,
        label="Accumulate gradients over",
        term="accumulation",
        help="Batches that each rank adds up before one step: a larger global batch in the same memory.",
        minimum=1,
        maximum=65536,
    )
    max_grad_norm: float | None = _optimizer(
        None,
        label="Clip gradients at norm",
        term="gradient clipping",
        help="Gradients with a larger norm are scaled down to it. Empty: never.",
        above=0,
        maximum=1e9,
    )
    label_smoothing: float = _optimizer(
        0.0,
        label="Label smoothing",
        help="Trains for less confident predictions: 0.1 is usual; 0 is off.",
        minimum=0,
        maximum=0.99,
    )


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How the ranks share the work."""

    strategy: str = _parallel(
        "ddp",
        label="Strategy",
        term="strategy",
        help="How the work is split over the ranks.",
        catalog="strategies",
    )
    tensor_parallel_size: int = _parallel(
        2,
        label="Ranks per replica",
        term="tensor parallelism",
        help="How many ranks share one copy of the model.",
        by_plugin="strategy",
        minimum=1,
        maximum=1024,
    )
    pipeline_microbatches: int = _parallel(
        4,
        label="Pipeline micro-batches",
        term="pipeline parallelism",
        help="Number of micro-batches per batch. With several, all stages work at the same time.",
        by_plugin="strategy",
        minimum=1,
        maximum=1024,
    )
    bucket_cap_mb: int = _parallel(
        25,
        label="Bucket size, MB",
        term="bucket",
        help="Gradients are averaged in buckets of this size.",
        by_plugin="strategy",
        minimum=1,
        maximum=4096,
    )
    gradient_as_bucket_view: bool = _parallel(
        True,
        label="Gradients as bucket views",
        term="bucket",
        help="Gradients share the buckets' memory, which saves one copy of them.",
        by_plugin="strategy",
    )
    static_graph: bool = _parallel(
        False,
        label="Static graph",
        help="Promise DDP that every step uses the same parameters.",
        by_plugin="strategy",
    )
    gradient_compression: str = _parallel(
        "none",
        label="Compress gradients",
        help="Sends gradients in 16 bits, with less precision.",
        by_plugin="strategy",
        choices=("none", "fp16", "bf16"),
    )
    all_reduce: str = _parallel(
        "auto",
        label="Average gradients",
        help="auto: through shared memory for CPU ranks of one machine, if possible; backend: always over "
        "gloo or NCCL.",
        by_plugin="strategy",
        choices=("auto", "backend"),
    )
    sync_batchnorm: bool = _parallel(
        False,
        label="SyncBatchNorm",
        term="SyncBatchNorm",
        help="BatchNorm computes its statistics over the batches of all ranks, not per rank; GPUs only.",
    )


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Precision, compilation, and how batches reach the device."""

    precision: str = _speed(
        "fp32",
        label="Precision",
        term="bf16, fp16",
        help="bf16 and tf32 need a GPU of compute capability 8.0 (Ampere) or newer; on a T4 or RTX 20 "
        "choose fp16, which also scales the loss so that small gradients survive. On a CPU, bf16 is "
        "faster with AMX or AVX512-BF16; other CPUs emulate bf16, which is slower.",
        choices=("fp32", "tf32", "bf16", "fp16"),
    )
    compile: bool = _speed(
        False,
        label="Compile",
        help="torch.compile: a slower start, then faster steps on a GPU, with little or no gain on a CPU. "
        "If it fails, the run continues uncompiled.",
    )
    cuda_graphs: bool = _speed(
        False,
        label="CUDA graphs",
        help="With compile: a step's kernels are captured once and launched together. For small models on "
        "one GPU, where launching kernels takes most of the time.",
        by_plugin="strategy",
    )
    data_location: str = _speed(
        "auto",
        label="Data location",
        help="device: all data in the GPU's memory; host: batches are copied; auto: device if the data fits.",
        choices=("auto", "device", "host"),
    )
    num_workers: int = _speed(
        0,
        label="Loader workers",
        help="Number of processes per rank that load batches if the data is not on the device.",
        minimum=0,
        maximum=256,
    )
    pin_memory: bool = _speed(
        True,
        label="Pinned memory",
        help="Makes copies to a GPU faster; has no effect on the CPU.",
    )
    prefetch_factor: int = _speed(
        2,
        label="Prefetch",
        help="Batches that each loader worker prepares in advance.",
        minimum=1,
        maximum=1024,
    )


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Name, device, and bitwise reproducibility."""

    name: str = _reproduce("", label="Name", help="A name for the list of runs. Optional.")
    device: str = _reproduce(
        "auto",
        label="Device",
        term="CPU rank",
        help="auto uses the GPUs if there are any, else the CPU.",
        choices=("auto", "cpu", "cuda"),
    )
    deterministic: bool = _reproduce(
        False,
        label="Deterministic",
        help="Uses only algorithms that give identical bits every time. On the CPU this is always so; on "
        "GPUs it can be slower.",
    )

    def repeats_bits(self, device_kind: str) -> bool:
        """Return True if a repeated run on the same ranks gives identical bits on this device (cuda, cpu).

        On GPUs some kernels add in the order in which their threads finish, and cuDNN selects algorithms by
        measured time.
        """
        return device_kind == "cpu" or self.deterministic


NO_MISTAKE = "none"


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """Options for teaching: a deliberate mistake, and comparing replicas."""

    mistake: str = _teaching(
        NO_MISTAKE,
        label="Broken on purpose",
        help="A common mistake with DDP, built in to show its effect. Never for a real run.",
        catalog="mistakes",
    )
    fingerprint_every_steps: int | None = _teaching(
        None,
        label="Compare replicas every … steps",
        term="fingerprint",
        help="Compares a hash of each rank's weights. Empty: as often as 0.5% of the time allows; 0: never.",
        minimum=0,
        maximum=10**9,
    )

    @property
    def is_broken_on_purpose(self) -> bool:
        """True if the run has a deliberate mistake, so its weights should not be used."""
        return self.mistake != NO_MISTAKE


NO_TRACKER = "none"
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9._~/-]*)?")


def _check_address(text: str) -> None:
    if text and not _ADDRESS.fullmatch(text):
        raise ValueError(
            "an address such as http://127.0.0.1:5000, without user, password and token, or empty"
        )


@dataclass(frozen=True, kw_only=True)
class Forwarding:
    """The experiment tracker that receives the run's events while it trains."""

    forward_to: str = _forward(
        NO_TRACKER,
        label="Tracker",
        help="A separate process sends the curves to this tracker; its errors do not affect the run.",
        choices=(NO_TRACKER, "tensorboard", "trackio", "mlflow", "wandb"),
    )
    forward_address: str = _forward(
        "",
        label="Address of the service",
        help="For example http://127.0.0.1:5000. Empty: the page's environment variables, or this machine.",
        only_with=("forward_to", ("trackio", "mlflow", "wandb")),
        check=_check_address,
    )
    forward_project: str = _forward(
        "",
        label="Project or experiment",
        help="Empty: rankscope.",
        only_with=("forward_to", ("trackio", "mlflow", "wandb")),
        max_length=100,
    )
    forward_offline: bool = _forward(
        True,
        label="Offline",
        help="On: W&B writes files into the run's folder, for wandb sync. Off: W&B needs an API key.",
        only_with=("forward_to", ("wandb",)),
    )


MAX_NAME = 100
MAX_LINES = 2000


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a run trains, for engines with several places; no field changes a result.

    Engines without such places ignore these fields.
    """

    partition: str = _where(
        "",
        label="Partition",
        help="Group of the cluster's nodes for the job, with free resources. Empty: the default.",
        max_length=MAX_NAME,
    )
    gpu_type: str = _where(
        "",
        label="GPU type",
        help="Empty: any GPU of the partition.",
        max_length=MAX_NAME,
    )
    time_limit: str = _where(
        "",
        label="Time limit",
        help="Such as 90 (minutes), 1:30:00 or 2-12:00:00. Empty: the partition's default.",
        max_length=MAX_NAME,
    )
    memory_gb: int | None = _where(
        None,
        label="Memory, GB",
        help="Memory on each machine, for all of its ranks. Empty: the cluster's default.",
        minimum=1,
        maximum=100_000,
    )
    account: str = _where(
        "",
        label="Account",
        help="The account that the job is charged to. Empty: your default account.",
        max_length=MAX_NAME,
    )
    qos: str = _where(
        "",
        label="QOS",
        help="The quality of service, which sets limits and priority. Empty: your default.",
        max_length=MAX_NAME,
    )
    extra_lines: str = _where(
        "",
        label="Further options",
        help="Further options for Slurm, one per line; only those that the administrator allows.",
        max_length=MAX_LINES,
    )


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}=.*")
# Variables that the page sets to start and find the ranks of a run.
_RESERVED_VARIABLES = re.compile(r"(TRAINERS_|PET_|TORCHELASTIC_|LD_|PYTHONPATH=|PYTHONHOME=)")


def parse_variables(text: str) -> dict[str, str]:
    """Parse the environment variables of a script, one NAME=VALUE per line.

    Raises:
        ValueError: with the allowed values.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not all(_VARIABLE.fullmatch(line) and not _RESERVED_VARIABLES.match(line) for line in lines):
        raise ValueError(
            "one NAME=VALUE per line; reserved are PYTHONPATH, PYTHONHOME and names that begin with "
            "TRAINERS_, PET_, TORCHELASTIC_ or LD_"
        )
    return dict(line.split("=", 1) for line in lines)


def parse_arguments(text: str) -> list[str]:
    """Return the arguments of a script, quoted as for a shell.

    Raises:
        ValueError: with the allowed values.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"arguments as in a shell ({error})") from None


def _check_script(text: str) -> None:
    parts = text.split("/")
    if text and (not text.endswith(".py") or any(part in ("", ".", "..") for part in parts)):
        raise ValueError("the path of a .py file inside the stored code, or empty")


@dataclass(frozen=True, kw_only=True)
class Script:
    """A user's own script, which runs in place of a model and data from the lists.

    The code itself is stored in the run's folder `code/`.
    """

    script: str = _script(
        "",
        label="Script",
        help="The entry file in the run's folder code/. Empty: the run trains a model from the lists.",
        max_length=500,
        check=_check_script,
    )
    script_arguments: str = _script(
        "",
        label="Arguments",
        help="The script's command line, quoted as in a shell.",
        max_length=4000,
        check=parse_arguments,
    )
    script_start: str = _script(
        "torchrun",
        label="Started as",
        help="torchrun starts one process per rank; python starts one, which starts the ranks itself.",
        choices=("torchrun", "python"),
    )
    script_python: str = _script(
        "",
        label="Python interpreter",
        help="The python of another environment, with torch 2.4 or newer. Empty: the page's own.",
        max_length=4096,
        is_path=True,
    )
    script_environment: str = _script(
        "",
        label="Environment variables",
        help="One NAME=VALUE per line.",
        max_length=4000,
        check=parse_variables,
    )
    script_folder: str = _script(
        "",
        label="Working folder",
        help="The folder in which the script starts. Empty: the folder of the stored code.",
        max_length=4096,
        is_path=True,
    )
    script_on_cpu: bool = _script(
        False,
        label="Run on CPU ranks",
        help="Runs a GPU script on the CPU: nccl becomes gloo; .cuda() and .to('cuda') have no effect.",
    )

    @property
    def is_script(self) -> bool:
        """True if the run is a user's own script."""
        return bool(self.script)
