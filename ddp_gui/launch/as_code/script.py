"""Writes a configuration as one script, `train.py`, from the template assets/code/train.py.jinja.

The script executes the same operations as `trainers/loop.py`. On CPU ranks in fp32, its losses have the same
bits; `tests/integration/test_as_code.py` compares them.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from ddp_gui.launch.as_code import data as data_module
from ddp_gui.launch.as_code import models
from ddp_gui.launch.as_code.data import DataCode
from ddp_gui.launch.as_code.models import ModelCode
from ddp_gui.launch.as_code.templates import WIDTH, NotAsCodeError, render, spaced
from trainers.contract.catalogue import CatalogueDataset, CatalogueStrategy
from trainers.contract.config import Config
from trainers.contract.config.sections import NO_MISTAKE

SHARDED = ("zero2", "zero3")
WRAPPED = ("ddp", "zero1")
STRATEGIES = (*WRAPPED, *SHARDED, "tensor")
# Same limit as in trainers/evaluation.py: without gradients, a batch can be larger.
MAX_EVALUATED, WIDENING, MAX_SCORES = 256, 8, 2**26
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}
SAME = "On CPU ranks in fp32, with as many ranks and threads, its losses have the same bits as the run's."
CLOSE = "On CPU ranks in fp32, its losses differ from the run's by about 1e-6: sums in another order."
# Strategies whose losses equal those of DDP on two ranks: a sum of two terms does not depend on their order.
EXACT_RANKS = 2
_HEADING = re.compile(r"^#@ (.+)\n", re.MULTILINE)
# Each import of the script, and the text by which its use is detected.
_IMPORTS = {
    "import ast": "ast.",
    "import bz2": "bz2.",
    "import csv": "csv.",
    "import gc": "gc.",
    "import gzip": "gzip.",
    "import lzma": "lzma.",
    "import math": "math.",
    "import os": "os.",
    "import re": "re.",
    "import zlib": "zlib.",
    "from collections import Counter": "Counter(",
    "from contextlib import nullcontext": "nullcontext(",
    "from pathlib import Path": "Path(",
    "": "",
    "import numpy as np": "np.",
    "import torch": "torch.",
    "import torch.distributed as dist": "dist.",
    "from torch import nn": "nn.",
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks": "default_hooks.",
    "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict": (
        "get_model_state_dict("
    ),
    "from torch.distributed.device_mesh import init_device_mesh": "init_device_mesh(",
    "from torch.distributed.fsdp import fully_shard": "fully_shard(",
    "from torch.distributed.optim import ZeroRedundancyOptimizer": "ZeroRedundancyOptimizer(",
    "from torch.distributed.tensor import DTensor": "DTensor)",
    "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module": (
        "parallelize_module("
    ),
    "from torch.nn import functional as F": "F.",
    "from torch.nn.parallel import DistributedDataParallel": "DistributedDataParallel(",
    "from torch.utils.data import {}": "DataLoader(",
}
_LOADING = ("BatchSampler", "DataLoader", "DistributedSampler", "RandomSampler", "TensorDataset")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the script and a cell of the notebook; the first one has no title."""

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class GeneratedScript:
    """A script: its header, and its sections in order."""

    header: str
    sections: tuple[Section, ...]

    @property
    def text(self) -> str:
        """The content of `train.py`."""
        return f"{self.head}{self.body}"

    @property
    def head(self) -> str:
        """The docstring, and an empty line."""
        return f'"""{self.header}"""\n\n'

    @property
    def body(self) -> str:
        """The text after the docstring."""
        parts = [
            f"# {section.title}\n{section.text}" if section.title else section.text
            for section in self.sections
        ]
        return spaced("\n\n".join(parts))


def write(
    config: Config,
    dataset: CatalogueDataset,
    strategy: CatalogueStrategy,
    *,
    run_id: str | None = None,
    num_threads: int | None = None,
) -> GeneratedScript:
    """Return the script of a configuration.

    Args:
        run_id: the run with these settings; None for the form.
        num_threads: threads of each CPU rank of that run, if known.

    Raises:
        NotAsCodeError: if a part of it cannot be written; the message is the reason.
    """
    _check_supported(config)
    data = data_module.data_code(config, dataset)
    model = models.model_code(config.model, config.model_size, data.shape)
    values = _template_values(config, dataset, data, model, config.num_replicas(strategy.ranks_per_replica))
    first, *parts = _HEADING.split(render("train.py", **values, num_threads=num_threads))
    sections = [
        Section(title=title, text=text)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
        if text.strip()
    ]
    imports = imports_of("\n".join([first, *parts]))
    return GeneratedScript(
        header=_header(config, dataset, data, run_id),
        sections=(Section(title="", text=f"{imports}\n\n{first}"), *sections),
    )


def _check_supported(config: Config) -> None:
    name = config.strategy
    if config.start_from:
        raise NotAsCodeError(
            f"A run that starts from another run's weights ({config.start_from}) cannot be exported as code."
        )
    if name not in STRATEGIES:
        raise NotAsCodeError(
            f"Strategy {name} cannot be exported as code: the script would be too long. Strategies that can "
            f"be exported: {', '.join(STRATEGIES)}."
        )
    if name == "tensor" and config.max_grad_norm is not None:
        raise NotAsCodeError("Gradient clipping with strategy tensor cannot be exported as code: choose ddp.")
    if name in WRAPPED and config.gradient_compression == "bf16":
        raise NotAsCodeError("Gradient compression to bf16 cannot be exported as code: choose fp16, or none.")


def _template_values(
    config: Config, dataset: CatalogueDataset, data: DataCode, model: ModelCode, num_replicas: int
) -> dict[str, Any]:
    """Return the derived values for the template, in addition to `config`, `data` and `model`."""
    has_ranks, may_be_gpu = config.world_size > 1, config.device != "cpu"
    is_sharded, is_tensor = (
        has_ranks and config.strategy in SHARDED,
        has_ranks and config.strategy == "tensor",
    )
    accumulates, shares_data = config.gradient_accumulation_steps > 1, num_replicas > 1
    is_uneven = _is_uneven(config, dataset, num_replicas)
    kind = {data_module.REGRESSION: "regression", data_module.TEXT: "text"}.get(dataset.task, "classes")
    return {
        "config": config,
        "data": data,
        "model": model,
        "kind": kind,
        "has_ranks": has_ranks,
        "shares_data": shares_data,
        "is_wrapped": has_ranks and config.strategy in WRAPPED,
        "is_sharded": is_sharded,
        "is_tensor": is_tensor,
        "may_be_gpu": may_be_gpu,
        "device_type": "device.type" if config.device == "auto" else f'"{config.device}"',
        "accumulates": accumulates,
        "stops_early": config.early_stopping_patience is not None,
        "is_uneven": is_uneven,
        # Weight of a batch's loss in the loss of its step.
        "weight": "weight" if is_uneven else "1 / ACCUMULATE" if accumulates else "",
        "is_augmented": data.is_image and (config.random_flip or config.random_crop > 0),
        "is_channels_last": model.has_convolutions
        and config.strategy == "ddp"
        and (config.device != "cuda" or config.precision != "fp32"),
        "casts": config.precision in ("bf16", "fp16"),
        "cast_type": {"bf16": "torch.bfloat16", "fp16": "torch.float16"}.get(config.precision, ""),
        "has_rate": config.lr_schedule != "constant" or config.warmup_steps > 0 or config.warmup_ratio > 0,
        "eval_batch": _evaluation_batch(config, dataset, data),
        "loader_options": _loader_options(config),
        "ddp_options": _ddp_options(config),
        "optimizer": "ZeroRedundancyOptimizer"
        if has_ranks and config.strategy == "zero1"
        else f"torch.optim.{OPTIMIZERS[config.optimizer]}",
        "optimizer_options": _optimizer_options(config, shares_data=shares_data, has_ranks=has_ranks),
    }


def _is_uneven(config: Config, dataset: CatalogueDataset, num_replicas: int) -> bool:
    """Return True if some steps have batches of different sizes, so that each batch needs a weight."""
    num_train = dataset.num_samples(config.sequence_length)
    steps = config.steps_per_epoch(num_train, num_replicas)
    if config.max_steps is not None and config.max_steps < steps:
        return False
    accumulates = config.gradient_accumulation_steps > 1
    return num_train % (config.global_batch(num_replicas) if accumulates else num_replicas) != 0


def _evaluation_batch(config: Config, dataset: CatalogueDataset, data: DataCode) -> int:
    length = data.shape.inputs[0] if dataset.task == data_module.TEXT else 1
    fitting = MAX_SCORES // max(1, dataset.num_classes * length)
    return max(config.batch_size, min(MAX_EVALUATED, WIDENING * config.batch_size, fitting))


def _loader_options(config: Config) -> list[str]:
    options = []
    if config.num_workers:
        options += [f"num_workers={config.num_workers}", f"prefetch_factor={config.prefetch_factor}"]
        options += ["persistent_workers=True", 'multiprocessing_context="fork"']
    if config.pin_memory and config.device != "cpu":
        is_gpu = "True" if config.device == "cuda" else 'device.type == "cuda"'
        options.append(f"pin_memory={is_gpu}")
    return options


def _ddp_options(config: Config) -> list[str]:
    options = [] if config.bucket_cap_mb == 25 else [f"bucket_cap_mb={config.bucket_cap_mb}"]
    options += ["gradient_as_bucket_view=True"] if config.gradient_as_bucket_view else []
    return options + (["static_graph=True"] if config.static_graph else [])


def _optimizer_options(config: Config, *, shares_data: bool, has_ranks: bool) -> list[str]:
    factors = ["world_size"] if shares_data else []
    factors += ["ACCUMULATE"] if config.gradient_accumulation_steps > 1 else []
    factor = " * ".join(factors)
    scale = f" * ({factor})" if len(factors) > 1 else f" * {factor}" if factors else ""
    options = []
    if has_ranks and config.strategy == "zero1":
        kind = OPTIMIZERS[config.optimizer]
        options += [f"optimizer_class=torch.optim.{kind}", "parameters_as_bucket_view=True"]
    options.append(f"lr=LEARNING_RATE{scale if config.scale_lr else ''}")
    if config.optimizer == "sgd":
        options.append(f"momentum={config.momentum!r}")
        options += ["nesterov=True"] if config.nesterov and config.momentum > 0 else []
    is_sharded = has_ranks and config.strategy not in WRAPPED
    if not (config.optimizer == "sgd" and is_sharded):  # torch has a fused SGD for plain tensors only
        options.append("fused=True")
    return options + ([] if config.weight_decay else ["weight_decay=0.0"])


def _header(config: Config, dataset: CatalogueDataset, data: DataCode, run_id: str | None) -> str:
    has_ranks = config.world_size > 1
    ranks = f", on {config.world_size} ranks ({config.strategy})" if has_ranks else ""
    name = "your own data" if dataset.name == "own" else _sanitize(dataset.label)
    source = f"of the run {run_id}" if re.fullmatch(r"[\w.-]+", run_id or "") else "in the form"
    is_exact = not has_ranks or (config.strategy == "ddp" and config.world_size <= EXACT_RANKS)
    omitted = ["telemetry", "the page's commands", "checkpoints in the background", "resuming", "samples"]
    omitted += ["averaging of gradients in shared memory"] if has_ranks and config.strategy in WRAPPED else []
    omitted += ["torch.compile"] if config.compile else []
    paragraph = (
        f"From the settings {source}; needs torch and numpy only. It reads {data.about}. "
        f"{SAME if is_exact else CLOSE} The script omits: {', '.join(omitted)}. "
        "It saves only the final weights."
    )
    paragraphs = [paragraph]
    if config.mistake != NO_MISTAKE:
        paragraphs.append(f"The mistake on purpose ({_sanitize(config.mistake)}) is not in this script.")
    text = "\n\n".join(textwrap.fill(part, WIDTH) for part in paragraphs)
    return f"{_sanitize(config.model)} on {name}{ranks}.\n\n    {_command(config)}\n\n{text}\n"


def _sanitize(text: str) -> str:
    """Return a text without the characters that could end a docstring."""
    return re.sub(r"[^\w .,:;()'’×–-]", "", text)[:200]


def _command(config: Config) -> str:
    if config.world_size == 1:
        return "python train.py"
    machines = f"--nnodes {config.num_nodes} --node_rank NUMBER --master_addr FIRST_MACHINE "
    nodes = machines if config.num_nodes > 1 else ""
    return f"torchrun {nodes}--nproc_per_node {config.nproc_per_node} train.py"


def imports_of(text: str) -> str:
    """Return the imports that a text needs, the standard library's first."""
    used = [
        line for line, use in _IMPORTS.items() if re.search(rf"(?<![\w.]){re.escape(use)}", text) or not line
    ]
    loading = [name for name in _LOADING if f"{name}(" in text]
    return "\n".join(used).format(", ".join(loading)).strip("\n")


def for_one_rank(config: Config) -> Config:
    """Return the configuration of the same training on a single device."""
    return replace(config, nproc_per_node=1, num_nodes=1, strategy="ddp", plugin_options={})


def describe(
    config: Config,
    dataset: CatalogueDataset | None,
    strategy: CatalogueStrategy | None,
    *,
    run_id: str | None = None,
    num_threads: int | None = None,
) -> dict[str, Any]:
    """Return the script for the page: its text, the notebook, and all lines with diff signs.

    The signs compare the script with the same training on one device: "+" marks lines that several ranks
    need, "-" lines of the script for one device. If the configuration cannot be written, `reason` says why.
    """
    info = {"num_ranks": config.world_size, "command": _command(config)}
    try:
        if dataset is None or strategy is None:
            raise NotAsCodeError(f"Data set {config.dataset} or strategy {config.strategy} no longer exists.")
        script = write(config, dataset, strategy, run_id=run_id, num_threads=num_threads)
        single = write(
            for_one_rank(config), dataset, replace(strategy, ranks_per_replica="one"), run_id=run_id
        )
    except NotAsCodeError as error:
        return {"reason": str(error), "train_py": "", "notebook": None, "lines": [], **info}
    return {
        "reason": None,
        "train_py": script.text,
        "notebook": notebook(script, config),
        # Exclude the header, which is prose, from the comparison.
        "lines": [(" ", line) for line in script.head.splitlines()] + changes(single.body, script.body),
        **info,
    }


def changes(before: str, after: str) -> list[tuple[str, str]]:
    """Return all lines of both texts in order, each with its sign: " " in both, "-" before, "+" after."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        if kind == "equal":
            lines += [(" ", line) for line in old[start:end]]
            continue
        lines += [("-", line) for line in old[start:end]]
        lines += [("+", line) for line in new[new_start:new_end]]
    return lines


_NOTE = (
    "These cells are the file `train.py`. A notebook is one process, so they run as a single rank. For "
    "{ranks} ranks, save the file and start it with `{command}`."
)
_ONE_RANK = """import os

# torchrun sets these variables for each rank; a notebook has only one rank.
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}"""


def notebook(script: GeneratedScript, config: Config) -> dict[str, Any]:
    """Return the script as a Jupyter notebook: JSON of nbformat 4.5, one cell for each section."""
    cells = [_cell("markdown", 0, script.header)]
    if config.world_size > 1:
        note = _NOTE.format(ranks=config.world_size, command=_command(config))
        cells += [_cell("markdown", 1, note), _cell("code", 2, _ONE_RANK)]
    for section in script.sections:
        if section.title:
            cells.append(_cell("markdown", len(cells), f"## {section.title}"))
        cells.append(_cell("code", len(cells), spaced(section.text).rstrip("\n")))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, number: int, source: str) -> dict[str, Any]:
    cell = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
