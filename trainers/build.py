"""Builds one rank's `Job` (data, model, strategy, optimizer) from a configuration."""

from __future__ import annotations

import difflib
import functools
import importlib
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trainers import registry
from trainers.checkpoint import description
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import Progress, StepStart
from trainers.checkpoint.start_from_run import InheritedWeights
from trainers.contract import checkpoint_files
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import DataOptions, Dataset, DataSpec, Split, digest
from trainers.data.loading import Loader
from trainers.data.micro_batches import ShardedBatches
from trainers.evaluation import Evaluator
from trainers.job import Job, SaveAnswers
from trainers.machine import host, nvml
from trainers.optimisation import compiling, optimizers
from trainers.optimisation.objective import Objective
from trainers.optimisation.optimizers import LearningRate
from trainers.parallel import batch_norm, precision, process_group
from trainers.parallel.precision import Precision
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.registry import ModelEntry, ModelOptions
from trainers.report.metrics import Trivial
from trainers.report.observer import Fingerprints, Observer
from trainers.report.reporter import NullReporter
from trainers.report.step_meter import StepMeter
from trainers.report.telemetry import LiveProgress

log = logging.getLogger(__name__)

Entry = TypeVar("Entry")

# Fraction of a device's free memory; the model and its activations need the rest.
MAX_DATA_MEMORY_SHARE = 0.25


def build_job(
    run: RunDirectory,
    reporter: NullReporter,
    live_progress: LiveProgress,
    world: World,
    resume_step: int | None,
) -> Job:
    """Build data, model and optimizer. Every rank must call this; all ranks start with the same weights.

    The order matters: the seed is set before the network draws its weights, BatchNorm is converted and the
    layout chosen before DDP wraps the model, and a checkpoint is loaded last because it overwrites the
    optimizer's state. The weights that a run starts from are loaded before DDP, which sends rank 0's.

    Raises:
        ValueError: if the configuration names an unknown part, or its parts are incompatible.
        NotInstalledError: if a required package is missing.
        CheckpointError: if the checkpoint to resume from is incomplete.
    """
    config = run.read_config()
    if world.world_size != config.world_size:
        raise ValueError(
            f"torchrun started {world.world_size} ranks, but config.json asks for {config.world_size} "
            f"(num_nodes {config.num_nodes} × nproc_per_node {config.nproc_per_node}): start that many, or "
            "change config.json"
        )
    _report_warnings(config, world, reporter)
    set_seed(config)
    registry.check_mistake(config)
    model_entry = pick(registry.models(), config.model, "model")
    options = ModelOptions.of(config)
    start = InheritedWeights.of_run(run, config)
    dataset = create_dataset(config, model_entry, options, start)
    spec = dataset.spec() if start is None else start.spec(dataset.spec())
    if spec.task not in model_entry.tasks:
        raise ValueError(
            f"model {config.model} does not support {spec.task}, the task of data set {config.dataset}"
        )
    strategy = make_strategy(config, world)
    choose_convolutions(config, strategy)
    train, validation = dataset.load(data_device(config, spec, world.device))
    for library in strategy.libraries:
        importlib.import_module(library)
    live_progress.begin_model(world.device)
    network = build_network(model_entry, spec, options).to(world.device)
    if problem := strategy.why_not(network):
        raise ValueError(f"strategy {config.strategy} cannot train model {config.model}: {problem}")
    build_for = functools.partial(build_network, model_entry, options=options)
    lineage = (
        None
        if start is None
        else start.begin(network, spec, build_for, train, validation, loads=resume_step is None)
    )
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    num_trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    log.info("%s: %d training samples", config.dataset, len(train))
    log.info("%s: %d parameters, of which %d are trained", config.model, num_parameters, num_trained)

    model_description = _describe(config, spec, validation, network, reporter) if world.is_main else None
    objective = Objective(spec, label_smoothing=config.label_smoothing, num_ranks=world.world_size)
    mixed_precision = Precision(config.precision, world.device)
    network, reason = batch_norm.synchronise(network, config, world)
    if reason:
        message = f"SyncBatchNorm does nothing here: {reason}."
        reporter.warning("sync_batchnorm_idle", message, "No action is needed.")
    # All ranks initialised the same weights; from here on each replica draws its own dropout masks.
    torch.manual_seed(config.seed + 1 + strategy.replica)
    strategy.autocast = mixed_precision.autocast
    if strategy.takes_any_layout:
        precision.put_channels_last(network, world.device, config.precision)
    strategy.wrap(network)
    if config.compile:
        _compile(config, strategy, objective, train, reporter)
    optimizer = optimizers.make_optimizer(config, strategy)
    answers = SaveAnswers(reporter)
    if world.is_main:
        checkpoint_files.remove_leftovers(run)
    checkpointer = registry.part(config, Checkpointer)(
        run,
        world,
        strategy,
        optimizer,
        scaler=mixed_precision.scaler,
        binding={
            "num_train": len(train),
            "num_validation": len(validation),
            "num_parameters": num_parameters,
            "data": digest(train),
        },
        keep_last=config.keep_last_checkpoints,
        keep_best=config.keep_best_checkpoint,
        announce=answers,
        description=model_description,
    )
    if resume_step is None:
        progress = Progress()
    else:
        if strategy.rehearses:
            _rehearse(config, strategy, objective, train, world)
        progress = checkpointer.load(resume_step)
    batches = make_batches(config, strategy, len(train))
    if config.num_workers == 0 and train.device.type != world.device.type:
        log.info("%d threads pick batches", process_group.use_free_cores(world.device))
    return Job(
        run=run,
        config=config,
        world=world,
        spec=spec,
        validation=validation,
        loader=Loader(train, batches, config, world.device),
        strategy=strategy,
        objective=objective,
        evaluator=registry.part(config, Evaluator)(strategy, objective, spec, world),
        optimizer=optimizer,
        rate=registry.part(config, LearningRate)(
            config,
            num_replicas=strategy.num_replicas,
            num_shards=batches.num_replicas,
            num_train=len(train),
        ),
        precision=mixed_precision,
        reporter=reporter,
        meter=registry.part(config, StepMeter)(world, reporter),
        observer=Observer.of(strategy, optimizer, live_progress),
        fingerprints=Fingerprints.of(config, strategy, reporter),
        progress=progress,
        checkpointer=checkpointer,
        num_train=len(train),
        num_parameters=num_parameters,
        num_trained=num_trained,
        num_shards=batches.num_replicas,
        global_batch=config.global_batch(batches.num_replicas),
        answers=answers,
        step_start=StepStart(strategy.network, world.device),
        trivial=_compute_trivial(spec, train, validation, reporter) if world.is_main else None,
        lineage=lineage,
    )


def _compute_trivial(
    spec: DataSpec, train: Split, validation: Split, reporter: NullReporter
) -> Trivial | None:
    try:
        return registry.task(spec.task).trivial(spec, train, validation)
    except (RuntimeError, ValueError, LookupError) as error:
        # Errors only warn: data sets and tasks may be user plug-ins, and training does not need this value.
        message = f"The trivial predictor could not be computed: {error}"
        reporter.warning("no_trivial", message, "Training is not affected; the verdict is more cautious.")
        return None


def _describe(
    config: Config, spec: DataSpec, validation: Split, network: nn.Module, reporter: NullReporter
) -> dict[str, Any] | None:
    try:
        return description.describe(config, spec, validation, network)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        # Errors of data sets and models, which may be plug-ins, only warn: training needs no description.
        message = f"The checkpoints will contain no description of the model: {error}"
        hint = "Training is not affected. The page cannot run the trained model on new inputs or export it."
        reporter.warning("no_description", message, hint)
        return None


def create_dataset(
    config: Config, model_entry: ModelEntry, options: ModelOptions, start: InheritedWeights | None = None
) -> Dataset:
    """Create the configured data set, with the tokenizer of the model or of the run's start, if any."""
    entry = pick(registry.datasets(), config.dataset, "dataset")
    tokenizer = model_entry.tokenizer(options) if model_entry.tokenizer else None
    data_options = DataOptions.of(config, tokenizer)
    return entry.create(data_options if start is None else start.data_options(data_options))


def build_network(entry: ModelEntry, spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build the network in the configured size.

    Raises:
        ValueError: if the model has no such size.
    """
    size = options.size or entry.default_size
    if size not in entry.sizes:
        raise ValueError(f"model_size is {size!r}, but {entry.name} has: {', '.join(entry.sizes)}")
    return entry.build(spec, replace(options, size=size))


def make_strategy(config: Config, world: World) -> Strategy:
    """Create the configured strategy.

    Raises:
        ValueError: if it is incompatible with the rest of the configuration.
    """
    kind = registry.part(config, pick(registry.strategies(), config.strategy, "strategy"))
    problem = kind.config_problem(config)
    if problem:
        raise ValueError(f"strategy {config.strategy}: {problem}")
    return kind(config, world)


def data_device(config: Config, spec: DataSpec, device: torch.device) -> torch.device:
    """Return the device for the data: the model's device, or the CPU if the data does not fit there."""
    # Loader workers are separate processes, which cannot read from a GPU.
    is_for_workers = config.data_location == "auto" and config.num_workers > 0
    if config.data_location == "host" or is_for_workers:
        return torch.device("cpu")
    if config.data_location == "auto" and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if spec.num_bytes > MAX_DATA_MEMORY_SHARE * free:
            return torch.device("cpu")
    return device


def make_batches(config: Config, strategy: Strategy, num_train: int) -> ShardedBatches:
    """Return the batch sampler for this rank's shard of the training samples."""
    return registry.part(config, ShardedBatches)(
        num_train,
        config.batch_size,
        num_accumulated=config.gradient_accumulation_steps,
        seed=config.seed,
        replica=strategy.replica,
        num_replicas=strategy.num_replicas,
    )


def set_seed(config: Config) -> None:
    """Seed all random generators identically on every rank, so that all ranks build the same weights."""
    random.seed(config.seed)
    torch.manual_seed(config.seed)
    if config.deterministic:
        # cuBLAS is deterministic only with a fixed workspace (CUDA documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def choose_convolutions(config: Config, strategy: Strategy) -> None:
    """Enable cuDNN's autotuner on GPUs, unless every rank must run the same kernel.

    Each new shape costs a few trial runs, once. Two ranks may find different kernels fastest, and different
    kernels round differently. So autotuning is off for deterministic runs and under tensor parallelism,
    where some replicated weights have gradients that are never averaged and would drift apart.
    """
    may_differ = not (config.deterministic or strategy.keeps_copies_without_sync)
    torch.backends.cudnn.benchmark = strategy.world.device.type == "cuda" and may_differ


def pick(table: Mapping[str, Entry], name: str, field: str) -> Entry:
    """Return the entry of this name.

    Raises:
        ValueError: if there is none; names the field, the value and the allowed names.
    """
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, table, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(f"{field} is {name!r}, but there are: {', '.join(sorted(table))}{hint}")


def _report_warnings(config: Config, world: World, reporter: NullReporter) -> None:
    for plugin in registry.discover_all():
        hint = "It cannot be chosen until it is fixed."
        reporter.warning("plugin_broken", f"{plugin.module} cannot be used: {plugin.message}", hint)
    if (obstacle := world.gpu_obstacle) is not None:
        message = f"The run trains on the CPU although this machine has GPUs. {obstacle.reason}"
        reporter.warning("no_cuda", message, obstacle.remedy)
    if config.precision == "tf32" and world.device.type == "cpu":
        reporter.warning(
            "tf32_idle",
            "TF32 has no effect on the CPU: the run computes in fp32.",
            "Choose bf16, or keep fp32.",
        )
    if world.device.type == "cuda" and torch.version.hip is None:
        properties = torch.cuda.get_device_properties(world.device)
        capability = (properties.major, properties.minor)
        precision_obstacle = nvml.precision_obstacle(config.precision, properties.name, capability)
        if precision_obstacle is not None:
            code = "tf32_idle" if config.precision == "tf32" else "bf16_emulated"
            reporter.warning(code, precision_obstacle.reason, precision_obstacle.remedy)
    if config.precision == "bf16" and world.device.type == "cpu" and host.has_bf16() is False:
        reporter.warning(
            "bf16_emulated",
            "This CPU has no bf16 arithmetic (AMX, AVX512-BF16): torch emulates it, slower than fp32.",
            "Choose fp32.",
        )
    if config.cuda_graphs and world.device.type == "cpu":
        reporter.warning("cuda_graphs_idle", "CUDA graphs have no effect on the CPU.", "No action is needed.")


def _rehearse(config: Config, strategy: Strategy, objective: Objective, train: Split, world: World) -> None:
    """Run one forward and backward pass without an update; loading then overwrites all state."""
    inputs, targets = _first_batch(config, train, world)
    with strategy.gradient_sync(enabled=True):
        with strategy.autocast():
            loss = strategy.loss_function(objective)(inputs, targets, 0.0)
        loss.backward()
    strategy.network.zero_grad(set_to_none=True)


def _first_batch(config: Config, train: Split, world: World) -> tuple[Tensor, Tensor]:
    indices = torch.arange(min(config.batch_size, len(train)), device=train.device)
    inputs, targets = train.batch(indices)
    return train.prepare(inputs.to(world.device)), targets.to(world.device)


def _compile(
    config: Config, strategy: Strategy, objective: Objective, train: Split, reporter: NullReporter
) -> None:
    problem: str | None = f"it is not offered with strategy {strategy.name}"
    if config.precision == "bf16" and _emulates_bf16(strategy.world.device):
        # Inductor silently skips bf16 graphs on such a GPU, yet reports the model as compiled.
        problem = "the GPU only emulates bf16; choose fp16"
    elif not strategy.is_sharded and not strategy.is_collective:
        batch = _first_batch(config, train, strategy.world)
        captures = config.cuda_graphs and strategy.world.device.type == "cuda"
        problem = compiling.try_compile(strategy, *batch, objective, cuda_graphs=captures)
        if captures and problem is not None:
            message = f"CUDA graphs cannot be used here: {problem}."
            reporter.warning(
                "cuda_graphs_failed", message, "The run continues; its kernels are launched individually."
            )
            problem = compiling.try_compile(strategy, *batch, objective)
    if problem is None:
        log.info("compiled %s", config.model)
        return
    message = f"torch.compile cannot be used here: {problem}."
    reporter.warning("compile_failed", message, "The run continues uncompiled; only its speed differs.")


def _emulates_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
