"""Starts a run from the weights, tokenizer and input scaling of another run's checkpoint.

Inputs are prepared as in the other run, because the weights were trained on inputs of that scale. If the
classes differ, the last layer starts with new weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trainers.checkpoint import description, loaded_state
from trainers.checkpoint.description import LETTERS, TABLE, TEXT
from trainers.contract import start_from
from trainers.contract.config import Config
from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.data.dataset import LANGUAGE_MODELLING, TABULAR_REGRESSION, DataOptions, DataSpec, Split
from trainers.data.text import LetterTokenizer
from trainers.registry import ModelOptions

log = logging.getLogger(__name__)

MAX_LISTED = 20


class InheritedWeightsError(ValueError):
    """A run cannot start from a checkpoint; the message names the mismatch."""


class InheritedWeights:
    """The weights, tokenizer and scale of inputs that a run inherits from a checkpoint.

    Args:
        item: the checkpoint, or the folder with the copy of its weights and description.
    """

    def __init__(self, item: Checkpoint, run_id: str) -> None:
        values = description.read(item)
        if values is None:
            raise InheritedWeightsError(
                f"step {item.step:,} of run {run_id} has no description of its inputs"
            )
        self.description, self._item, self._run_id = values, item, run_id
        self._old_spec = description.spec_of(values)

    @classmethod
    def of_run(cls, run: RunDirectory, config: Config) -> InheritedWeights | None:
        """Return the start of this run, or None for a new model.

        Raises:
            ValueError: if the copy of the checkpoint is missing or damaged, or the configuration has another
                model.
        """
        if not config.start_from:
            return None
        if (origin := start_from.read_origin(run)) is None:
            raise InheritedWeightsError(
                f"{run.path / start_from.FOLDER} is missing: it contains the weights to start from"
            )
        folder = run.path / start_from.FOLDER
        start = cls(Checkpoint(step=origin.step, path=folder, size_bytes=0, saved_unix_s=0.0), origin.run_id)
        model, options = start.description["model"], ModelOptions.of(config)
        for field, new_value, old_value in (
            ("model", config.model, model["name"]),
            ("pretrained_path", options.pretrained_path, model["pretrained_path"]),
            ("lora_rank", options.lora_rank, model.get("lora_rank", 0)),
        ):
            if new_value != old_value:
                raise InheritedWeightsError(
                    f"{field} is {new_value!r}, but {config.start_from} was trained with {old_value!r}"
                )
        return start

    def data_options(self, options: DataOptions) -> DataOptions:
        """Return the options with which a data set gives inputs that the model can read."""
        inputs = self.description["input"]
        if inputs["kind"] != TEXT:
            return options
        is_letters = inputs["tokenizer"]["kind"] == LETTERS
        letters = LetterTokenizer(inputs["tokenizer"].get("vocabulary", ()))
        tokenizer = letters if is_letters else description.tokenizer_of(inputs)
        length = options.sequence_length or self._old_spec.input_shape[0]
        return replace(options, tokenizer=tokenizer or options.tokenizer, sequence_length=length)

    def spec(self, spec: DataSpec) -> DataSpec:
        """Return the specification of the new data as the model sees it.

        Raises:
            StartError: if the data has another task, or a table other columns.
        """
        if spec.task != self._old_spec.task:
            raise InheritedWeightsError(
                f"the task of the data is {spec.task}, but the checkpoint's is {self._old_spec.task}"
            )
        names = self._old_spec.feature_names, spec.feature_names
        if self.description["input"]["kind"] == TABLE and len(names[0]) == len(names[1]):
            for index, (old_name, new_name) in enumerate(zip(*names, strict=True), start=1):
                if old_name != new_name:
                    column = f"column {index} of the table"
                    raise InheritedWeightsError(
                        f"{column} is {new_name!r}, but the checkpoint's is {old_name!r}"
                    )
        if self.description["input"].get("tokenizer", {}).get("kind") == LETTERS:
            return replace(spec, class_names=self._old_spec.class_names, decode=None)
        return spec

    def find_replaced(self, spec: DataSpec, build: Callable[[DataSpec], nn.Module]) -> list[str]:
        """Return the tensors that depend on the number of classes, if the classes differ; else none.

        Args:
            build: builds the network for a data set.
        """
        task, old_spec = spec.task, self._old_spec
        if task in (LANGUAGE_MODELLING, TABULAR_REGRESSION) or spec.class_names == old_spec.class_names:
            return []
        device = "cpu" if self.description["model"]["pretrained_path"] else "meta"
        with torch.random.fork_rng(devices=[]), torch.device(device):
            network, wider = (
                build(replace(spec, num_classes=num_classes, class_names=()))
                for num_classes in (spec.num_classes, spec.num_classes + 1)
            )
        tensors, wider_tensors = network.state_dict(), wider.state_dict()
        if tensors.keys() == wider_tensors.keys():
            return [name for name, tensor in tensors.items() if wider_tensors[name].shape != tensor.shape]
        # A pretrained folder whose classifier has this number of classes may give another architecture.
        linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
        return [name for name in tensors if name.rpartition(".")[0] == linear[-1]]

    def load(self, network: nn.Module, spec: DataSpec, replaced: Collection[str]) -> None:
        """Load the weights into a network; those in `replaced` keep their initial values.

        Raises:
            StartError: naming a tensor that is missing or has another shape, and both shapes.
        """
        weights = loaded_state.read_weights(self._item.path)
        self.check(network, weights, spec, replaced)
        network.load_state_dict(
            {name: weight for name, weight in weights.items() if name not in replaced}, False
        )
        if spec.task == TABULAR_REGRESSION:
            self._rescale_output(network, spec)
        replaced_text = f"; new: {', '.join(replaced)}" if replaced else ""
        log.info("weights of run %s, step %d%s", self._run_id, self._item.step, replaced_text)

    def _rescale_output(self, network: nn.Module, spec: DataSpec) -> None:
        """Rescale the last layer from standard deviations of the old targets to those of the new targets."""
        linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
        with torch.no_grad():
            for last in linear[-1:]:
                last.weight.mul_(self._old_spec.target_std / spec.target_std)
                if last.bias is not None:
                    last.bias.mul_(self._old_spec.target_std / spec.target_std)
                    last.bias.add_((self._old_spec.target_mean - spec.target_mean) / spec.target_std)

    def begin(
        self,
        network: nn.Module,
        spec: DataSpec,
        build: Callable[[DataSpec], nn.Module],
        *splits: Split,
        loads: bool,
    ) -> dict[str, Any]:
        """Load the weights if requested, and scale inputs as before; return the field `start` of `plan`."""
        replaced = self.find_replaced(spec, build)
        if loads:
            self.load(network, spec, replaced)
        self.use_scale(*splits)
        counts = {"num_classes_before": self._old_spec.num_classes, "num_classes": spec.num_classes}
        return {"run_id": self._run_id, "step": self._item.step, "replaced": replaced[:MAX_LISTED], **counts}

    def check(
        self, network: nn.Module, weights: dict[str, Tensor], spec: DataSpec, replaced: Collection[str]
    ) -> None:
        """Raise StartError if weights other than those in `replaced` do not fit the network for this data."""
        network_tensors = network.state_dict()
        for name in [name for name in [*network_tensors, *weights] if name not in replaced]:
            old_shape, new_shape = (_shape(tensors.get(name)) for tensors in (weights, network_tensors))
            if old_shape != new_shape:
                raise InheritedWeightsError(
                    f"its model reads inputs of {_sides(self._old_spec.input_shape)}, but this data has "
                    f"{_sides(spec.input_shape)}: the tensor {name[:80]} has shape {old_shape} and would "
                    f"have shape {new_shape}"
                )

    def use_scale(self, *splits: Split) -> None:
        """Make splits prepare images and tables as the checkpoint's run did.

        Images with another range (0 to 16 instead of 0 to 255) are first scaled to the same range.
        """
        inputs, factor = self.description["input"], 1.0
        if inputs["kind"] == TEXT:
            return
        if "largest" in inputs:
            factor = description.largest_pixel(splits[0]) / inputs["largest"]
        for split in splits:
            split.use_scale(
                [value * factor for value in inputs["mean"]], [value * factor for value in inputs["std"]]
            )


def _shape(tensor: Any) -> str:
    return _sides(tensor.shape) if isinstance(tensor, Tensor) else "missing"


def _sides(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape)) or "one number"
