"""A trained model: the network of a run with the weights of one checkpoint, which answers in JSON."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers import build, registry
from trainers.checkpoint import description, loaded_state
from trainers.checkpoint.description import PRETRAINED, TEXT, Description, DescriptionError
from trainers.checkpoint.start_from_run import InheritedWeights, InheritedWeightsError
from trainers.contract import manifests
from trainers.contract.checkpoint_files import CheckpointError
from trainers.contract.config import Config
from trainers.contract.rundir import Checkpoint, RunDirectory, library_error_text
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataSpec,
    Split,
    Tokenizer,
)
from trainers.data.own import cache
from trainers.data.own.dataset import Own
from trainers.predict.prepare import InputError, PreparedInput, prepare
from trainers.registry import ModelEntry, ModelOptions
from trainers.report import samples

CPU = torch.device("cpu")
MOST_CLASSES = 20
# Number of validation samples to search for the nearest ones; reading more would take seconds.
MOST_COMPARED = 1_000
COMPARED_WITHIN_S = 3.0
COMPARED_AT_ONCE = 200
# Time limit for searching validation samples of a confusion.
LOOKED_AT_WITHIN_S = 10.0
# Number of networks that one process keeps, so that a slider over checkpoints need not load them again.
MOST_KEPT = 16
MOST_KEPT_PARAMETERS = 50_000_000
MAX_TEXT = 300
MOST_OTHERS = 4
MAX_TOKENS = 2_000
MAX_TEMPERATURE = 5.0


class TrainedModel:
    """A network with the weights of one checkpoint.

    Args:
        description: the description of the model; see `trainers.checkpoint.description`.
    Attributes:
        item, step: the checkpoint, and its step.
    """

    def __init__(self, run: RunDirectory, item: Checkpoint, info: Description) -> None:
        self.about = info
        self.run = run
        self.item, self.step = item, item.step
        self.spec: DataSpec = description.spec_of(info)
        model = info["model"]
        self._entry: ModelEntry = build.pick(registry.models(), model["name"], "model")
        self._options = ModelOptions(
            size=model["size"],
            pretrained_path=model["pretrained_path"],
            lora_rank=model.get("lora_rank", 0),
        )
        self.tokenizer = self._tokenizer()
        self.network = build.build_network(self._entry, self.spec, self._options)
        weights = loaded_state.read_weights(item.path)
        loaded_state.check_weights(self.network, weights, f"the weights of step {item.step:,}")
        self.network.load_state_dict(weights)
        self.network.eval()
        self._device = CPU
        self._validation: Split | None = None
        self._features: Tensor | None = None
        self._compared: Tensor | None = None
        self._answers: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    def move(self, device: torch.device) -> None:
        """Move the network to a device; inputs and answers stay in host memory."""
        self.network.to(device)
        self._device = device

    def _scores(self, inputs: Tensor) -> Tensor:
        return self.network(inputs.to(self._device)).float()  # type: ignore[no-any-return]

    def _tokenizer(self) -> Tokenizer | None:
        inputs = self.about["input"]
        if inputs["kind"] != TEXT:
            return None
        if inputs["tokenizer"]["kind"] == PRETRAINED:
            if self._entry.tokenizer is None:
                raise ValueError(f"model {self._entry.name} has no tokenizer of its own")
            return self._entry.tokenizer(self._options)
        return description.tokenizer_of(inputs)

    @torch.inference_mode()
    def predict(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one input.

        Raises:
            InputError: if the input is not valid for the model.
        """
        prepared = self.prepare(inputs)
        scores = self._scores(prepared.tensor).cpu()
        if not bool(scores.isfinite().all()):
            raise ValueError(
                "the output of the model is not a number: the input is far outside the range of the data, or "
                "its training has diverged"
            )
        return {"step": self.step, "task": self.spec.task, "input": prepared.shown, **self.answer(scores[0])}

    def prepare(self, inputs: Mapping[str, Any]) -> PreparedInput:
        """Return an input converted for the model.

        Raises:
            InputError: if it is not valid for the model.
        """
        if self.spec.task == LANGUAGE_MODELLING:
            raise InputError("this model continues a text: use generate instead of predict")
        return prepare(self.about, inputs, self.tokenizer)

    def answer(self, scores: Tensor) -> dict[str, Any]:
        """Return the meaning of one sample's output."""
        if self.spec.task == TABULAR_REGRESSION:
            return {"value": float(scores[0]) * self.spec.target_std + self.spec.target_mean}
        probabilities = scores.softmax(-1)
        order = probabilities.argsort(descending=True).tolist()
        shown = sorted(order[:MOST_CLASSES]) if len(order) <= MOST_CLASSES else order[:MOST_CLASSES]
        return {
            "prediction": self._class_name(order[0]),
            "probabilities": [
                {"class_name": self._class_name(index), "probability": float(probabilities[index])}
                for index in shown
            ],
            "num_classes": len(order),
        }

    def _class_name(self, index: int) -> str:
        names = self.spec.class_names
        return names[index] if index < len(names) else f"class {index}"

    @torch.inference_mode()
    def nearest(self, inputs: Mapping[str, Any], num_wanted: int) -> dict[str, Any]:
        """Return the validation samples that are most similar to an input.

        The distance is measured between the inputs of the network's last linear layer.

        Raises:
            ValueError: if this machine cannot read the data.
        """
        if self._features is None:
            self._features, self._compared = self._features_of_validation()
        assert self._compared is not None
        features = self._features_of(self.prepare(inputs).tensor)
        distances = (self._features - features).square().sum(1).sqrt()
        order = distances.argsort()[:num_wanted]
        return {
            "step": self.step,
            "num_compared": len(self._features),
            **self._shown(self._compared[order], distances[order].tolist()),
        }

    def _features_of(self, inputs: Tensor) -> Tensor:
        linear = [module for module in self.network.modules() if isinstance(module, nn.Linear)]
        if not linear:
            return inputs.flatten(1).float()
        seen: list[Tensor] = []
        handle = linear[-1].register_forward_hook(lambda _module, args, _output: seen.append(args[0]))
        try:
            self._scores(inputs)
        finally:
            handle.remove()
        return seen[-1].flatten(1).cpu() if seen else inputs.flatten(1).float()

    def _features_of_validation(self) -> tuple[Tensor, Tensor]:
        validation = self.validation()
        chosen = samples.spread(MOST_COMPARED, len(validation))
        ends_at = time.monotonic() + COMPARED_WITHIN_S
        parts: list[Tensor] = []
        for indices in chosen.split(COMPARED_AT_ONCE):
            inputs, _ = validation.batch(indices)
            parts.append(self._features_of(validation.prepare(inputs)))
            if time.monotonic() > ends_at:
                break
        features = torch.cat(parts)
        return features, chosen[: len(features)]

    def _shown(self, indices: Tensor, distances: list[float]) -> dict[str, Any]:
        """Return validation samples for the page, each with its label and distance."""
        validation = self.validation()
        inputs, targets = validation.batch(indices)
        if self.spec.task == TABULAR_REGRESSION:
            values = samples.in_target_units(targets, self.spec).tolist()
            answers: list[dict[str, Any]] = [{"label": samples.short(value)} for value in values]
        else:
            answers = [{"label": self._class_name(label)} for label in targets.tolist()]
        for answer, distance in zip(answers, distances, strict=True):
            answer["distance"] = samples.short(distance)
        if self.spec.task == IMAGE_CLASSIFICATION:
            pictures = samples.thumbnails(inputs, self.about["input"].get("largest", 255))
            channels, height, width = pictures.shape[1:]
            size = {"height": height, "width": width, "channels": channels}
            pixels = [samples.as_base64(picture.permute(1, 2, 0)) for picture in pictures]
            shown = [size | {"pixels": each} | answer for each, answer in zip(pixels, answers, strict=True)]
            return {"images": shown}
        if self.spec.task == TEXT_CLASSIFICATION:
            texts = [
                self.text_of(index, row, MAX_TEXT)
                for index, row in zip(indices.tolist(), inputs, strict=True)
            ]
            return {"texts": [{"text": text} | answer for text, answer in zip(texts, answers, strict=True)]}
        return {"table": samples.rows(inputs, answers, self.spec, validation)}

    @torch.inference_mode()
    def confused(self, label: int, prediction: int, num_wanted: int) -> dict[str, Any]:
        """Return validation samples of a class with a prediction, the most confident predictions first.

        Raises:
            InputError: if the model does not predict classes, or the class does not exist.
        """
        if self.spec.task in (TABULAR_REGRESSION, LANGUAGE_MODELLING):
            raise InputError("this model does not predict classes")
        for name, value in (("label", label), ("prediction", prediction)):
            if not 0 <= value < self.spec.num_classes:
                raise InputError(f"{name} is {value}; allowed: 0 to {self.spec.num_classes - 1}")
        if self._answers is None:
            self._answers = self._answers_of_validation()
        labels, predictions, probabilities = self._answers
        matches = torch.nonzero((labels == label) & (predictions == prediction)).flatten()
        order = probabilities[matches].argsort(descending=True)
        chosen = matches[order][:num_wanted]
        shown = self._shown(chosen, [0.0] * len(chosen)) if len(chosen) else {}
        items = shown.get("images") or shown.get("texts") or shown.get("table", {}).get("rows", [])
        for item, probability in zip(items, probabilities[chosen].tolist(), strict=True):
            del item["distance"]
            item["probability"] = probability
        return {"step": self.step, "num_found": len(matches), "num_looked_at": len(labels), **shown}

    def _answers_of_validation(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return label, prediction and its probability for the first validation samples."""
        validation = self.validation()
        ends_at = time.monotonic() + LOOKED_AT_WITHIN_S
        labels, predictions, probabilities = [], [], []
        for indices in torch.arange(len(validation)).split(COMPARED_AT_ONCE):
            inputs, targets = validation.batch(indices)
            best = self._scores(validation.prepare(inputs)).cpu().softmax(-1).max(-1)
            labels.append(targets)
            predictions.append(best.indices)
            probabilities.append(best.values)
            if time.monotonic() > ends_at:
                break
        return torch.cat(labels), torch.cat(predictions), torch.cat(probabilities)

    def text_of(self, index: int, tokens: Tensor, max_length: int) -> str:
        """Return the text of a validation sample, with at most this number of characters."""
        texts = getattr(self.validation(), "texts", None)
        if texts is not None:
            return samples.cut(texts[index], max_length)
        assert self.tokenizer is not None
        return samples.cut(self.tokenizer.decode(tokens.tolist()), max_length)

    def validation(self) -> Split:
        """Return the run's validation split.

        Raises:
            ValueError: if the data is not on this machine, or has changed since the run.
        """
        if self._validation is None:
            self._validation = data_of(self.run)[1]
        return self._validation

    @torch.inference_mode()
    def generate(
        self,
        prompt: str,
        *,
        temperature: float,
        top_k: int | None,
        num_tokens: int,
        seed: int,
    ) -> Iterator[dict[str, Any]]:
        """Yield each new token: `text`, `probability`, and the most probable `others`.

        Raises:
            InputError: naming the argument, its value and the allowed values.
        """
        if self.spec.task != LANGUAGE_MODELLING:
            raise InputError("this model does not continue texts: use predict instead of generate")
        _check_range("temperature", temperature, 0.0, MAX_TEMPERATURE)
        _check_range("num_tokens", num_tokens, 1, MAX_TOKENS)
        if top_k is not None:
            _check_range("top_k", top_k, 1, self.spec.num_classes)
        generator = torch.Generator().manual_seed(seed)
        tokens = self._encode(prompt)
        length = self.spec.input_shape[0]
        written = ""
        new: list[int] = []
        for _ in range(num_tokens):
            scores = self._scores(torch.tensor([tokens[-length:]]))[0, -1].cpu()
            if not bool(scores.isfinite().all()):
                raise ValueError("the output of the model is not a number: its training has diverged")
            plain = scores.softmax(-1)
            token = _draw(scores, temperature, top_k, generator)
            tokens.append(token)
            new.append(token)
            # Decode the tokens together, because a character can consist of several tokens.
            so_far = self._decode(new)
            likely = plain.topk(min(MOST_OTHERS + 1, len(plain))).indices.tolist()
            yield {
                "text": so_far[len(written) :] if so_far.startswith(written) else "",
                "probability": float(plain[token]),
                "others": [
                    {"text": self._decode([other]), "probability": float(plain[other])}
                    for other in likely
                    if other != token
                ][:MOST_OTHERS],
            }
            written = so_far if so_far.startswith(written) else written

    def _encode(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt; for an empty prompt, a line break if the vocabulary contains it."""
        if self.tokenizer is not None:
            return self.tokenizer.encode([prompt], MAX_TOKENS)[0] or [0]
        number_of = {name: number for number, name in enumerate(self.spec.class_names)}
        unknown = sorted({character for character in prompt if character not in number_of})
        if unknown:
            shown = " ".join(unknown[:10])
            raise InputError(
                f"prompt has characters that the model never saw: {shown}. It knows {len(number_of)}, "
                f"such as {''.join(name for name in number_of if name.isprintable())[:60]}"
            )
        return [number_of[character] for character in prompt] or [number_of.get("\n", 0)]

    def _decode(self, tokens: list[int]) -> str:
        if self.tokenizer is not None:
            return self.tokenizer.decode(tokens)
        return "".join(self.spec.class_names[token] for token in tokens)


def _draw(scores: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Return a token; temperature 0 is the most probable one."""
    if temperature == 0:
        return int(scores.argmax())
    if top_k is not None:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
    return int(torch.multinomial((scores / temperature).softmax(-1), 1, generator=generator))


def _check_range(name: str, value: float, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:
        raise InputError(f"{name} is {str(value)[:40]}; allowed: {low:g} to {high:,g}")


def data_of(run: RunDirectory) -> tuple[DataSpec, Split]:
    """Return the description and the validation split of a run's data.

    Raises:
        ValueError: if the data is not on this machine, or has changed since the run.
    """
    config = run.read_config()
    entry = build.pick(registry.models(), config.model, "model")
    options = ModelOptions.of(config)
    start = InheritedWeights.of_run(run, config)
    dataset = build.create_dataset(config, entry, options, start)
    if isinstance(dataset, Own) and cache.find(dataset.fingerprint) is None:
        raise ValueError("the data of this run is not on this machine, or has changed since the run")
    try:
        validation = dataset.load(CPU)[1]
        if start is not None:
            start.use_scale(validation)
        return dataset.spec(), validation
    except (OSError, LookupError) as error:
        raise ValueError(
            f"the data of this run cannot be read on this machine: {library_error_text(error)}"
        ) from error


def compare_start(model: TrainedModel, config: Config, num_classes: int) -> dict[str, Any]:
    """Return whether a run with this configuration can start from a model's weights.

    Args:
        num_classes: number of classes of data that is not prepared yet.

    Returns:
        `problem`, a text or None, and the names of the tensors in `replaced`. Without these fields the data
        is not known yet, and the run itself compares at its start.
    """
    start, start_spec = InheritedWeights(model.item, model.run.run_id), model.spec
    entry = build.pick(registry.models(), config.model, "model")
    options = ModelOptions.of(config)
    # without the checkpoint's tokenizer, as in the page's inspection
    dataset = build.create_dataset(config, entry, options)
    is_known = not isinstance(dataset, Own) or cache.find(dataset.fingerprint) is not None
    is_text = model.about["input"]["kind"] == TEXT
    if not is_known and not is_text:
        return {"problem": None}
    try:
        unknown = replace(start_spec, num_classes=num_classes, class_names=())
        spec = start.spec(dataset.spec()) if is_known else unknown
        if is_text:
            classes = start_spec if start_spec.task == LANGUAGE_MODELLING else spec
            length = config.sequence_length or start_spec.input_shape[0]
            spec = replace(
                start_spec,
                input_shape=(length,),
                num_classes=classes.num_classes,
                class_names=classes.class_names,
            )
        build_for = partial(build.build_network, entry, options=options)
        replaced = start.find_replaced(spec, build_for)
        start.check(build_for(spec), model.network.state_dict(), spec, replaced)
    except InheritedWeightsError as error:
        return {"problem": str(error)}
    counts = {"num_classes_before": start_spec.num_classes, "num_classes": spec.num_classes}
    return {"problem": None, "replaced": replaced, **counts}


def describe_older(run: RunDirectory) -> dict[str, Any]:
    """Create the description for a checkpoint without one, from the run's configuration and data.

    Raises:
        ValueError: if the data is not on this machine.
    """
    config = run.read_config()
    spec, validation = data_of(run)
    entry = build.pick(registry.models(), config.model, "model")
    options = ModelOptions.of(config)
    network = build.build_network(entry, spec, options)
    return description.describe(config, spec, validation, network)


def find_checkpoint(run: RunDirectory, step: int | None) -> Checkpoint:
    """Return the checkpoint of a step (None: the one saved last) after checking its files.

    Raises:
        CheckpointError: if it does not exist, or a file differs from its checksum.
    """
    item = pick_checkpoint(run, step)
    if problem := manifests.find_fault(item, sum_bytes=manifests.QUICK_BYTES):
        raise CheckpointError(f"checkpoint step_{item.step}: {problem}")
    return item


def pick_checkpoint(run: RunDirectory, step: int | None) -> Checkpoint:
    """Return the checkpoint of a step (None: the one saved last) without checking its files.

    Raises:
        CheckpointError: if it does not exist.
    """
    checkpoints = run.list_checkpoints()
    if not checkpoints:
        raise CheckpointError(f"run {run.run_id} has no checkpoint")
    if step is None:
        return max(checkpoints, key=lambda each: (each.saved_unix_s, each.step))
    matches = [each for each in checkpoints if each.step == step]
    if not matches:
        steps = ", ".join(f"{each.step:,}" for each in checkpoints)
        raise CheckpointError(
            f"run {run.run_id} has no checkpoint of step {step:,}; its checkpoints: {steps}"
        )
    return matches[0]


def load(run: RunDirectory, item: Checkpoint) -> TrainedModel:
    """Return the model of a checkpoint.

    Raises:
        ValueError: if the model cannot be built on this machine, or the weights do not match it.
    """
    try:
        loaded_description = description.read(item)
        return TrainedModel(
            run, item, describe_older(run) if loaded_description is None else loaded_description
        )
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint step_{item.step} was deleted: choose another") from error
    except (DescriptionError, CheckpointError):
        raise
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:
        message = (
            f"the model of step {item.step:,} cannot be built on this machine: {library_error_text(error)}"
        )
        raise ValueError(message) from error


class Models:
    """The most recently used models of a process."""

    def __init__(self, loaded: Callable[[RunDirectory, Checkpoint], TrainedModel] = load) -> None:
        self._load = loaded
        self._cached: OrderedDict[tuple[Path, int, float], TrainedModel] = OrderedDict()

    def get(self, run: RunDirectory, step: int | None) -> TrainedModel:
        """Return the model of a checkpoint, which is loaded on first use.

        Raises:
            ValueError: see `find_checkpoint` and `load`.
        """
        item = pick_checkpoint(run, step)
        # The key includes the time, because a run that resumes from an older checkpoint saves a step again.
        key = run.path, item.step, item.saved_unix_s
        if key not in self._cached:
            self._cached[key] = self._load(run, find_checkpoint(run, item.step))
        self._cached.move_to_end(key)
        self._drop_oldest()
        return self._cached[key]

    def _drop_oldest(self) -> None:
        while len(self._cached) > 1 and (
            len(self._cached) > MOST_KEPT
            or sum(model.num_parameters for model in self._cached.values()) > MOST_KEPT_PARAMETERS
        ):
            self._cached.popitem(last=False)
