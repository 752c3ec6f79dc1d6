"""Writes a model for use outside this program: weights, exported programs, labels, preprocessing, an example.

    python -m trainers.predict.take_home < question.json

The page starts this program with the run's directory, the step and the folder to fill. It prints one JSON
object per line, with `doing`, `done` and `of`, and at the end `facts`. The page adds the model card and packs
the folder.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from trainers import registry
from trainers.checkpoint import description
from trainers.checkpoint.description import IMAGE, TABLE, TEXT
from trainers.contract.checkpoint_files import sha256_of
from trainers.contract.rundir import RunDirectory, library_error_text
from trainers.data.dataset import LANGUAGE_MODELLING
from trainers.files.json_files import parse_json
from trainers.machine import facilities
from trainers.models.networks import lora
from trainers.predict.program import program, snippet
from trainers.predict.trained_model import TrainedModel, find_checkpoint, load

NICENESS = 5
# Limit of this process's address space, most of which an export only reserves.
MEMORY_BYTES = 32 * 2**30
# Packages that are needed only for model.onnx. They are optional because of their size and import time.
ONNX_PACKAGES = ("onnx", "onnxscript")
PROGRAM, ONNX, WEIGHTS, ABOUT = "model.pt2", "model.onnx", "weights.safetensors", "model.json"
HUGGING_FACE = "huggingface"
MAX_TEXT = 2_000
CHECKED = ("torch", "onnx", "onnxscript", "onnxruntime", "transformers", "timm", "peft", "safetensors")

# Number of parts whose beginning `fill` reports.
NUM_PARTS = 6

Report = Callable[[str], None]


def main() -> None:
    """Fill the folder that the question on stdin names."""
    os.nice(NICENESS)
    if facilities.are_available():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    request = parse_json(sys.stdin.buffer.read())
    registry.discover_all()
    done = 0

    def report(doing: str) -> None:
        nonlocal done
        print(json.dumps({"doing": doing, "done": done, "of": NUM_PARTS}), file=sys.__stdout__, flush=True)
        done += 1

    run = RunDirectory(Path(request["run_dir"]))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # exporters print
            facts = fill(run, request["step"], Path(request["folder"]), report)
    except (ValueError, OSError, LookupError, RuntimeError, MemoryError) as error:
        facts = {"error": library_error_text(error)}
    print(json.dumps({"facts": facts}, allow_nan=False), flush=True)


def fill(run: RunDirectory, step: int | None, folder: Path, report: Report) -> dict[str, Any]:
    """Write all files of an export into a folder; return facts for the model card.

    Raises:
        ValueError: if the model cannot be loaded or exported.
    """
    report("loading the model")
    item = find_checkpoint(run, step)
    model = load(run, item)
    example = example_input(model)
    with torch.no_grad():
        expected = [(inputs, model.network(inputs)) for inputs in (example, example[:1])]
    if model.about["model"].get("lora_rank"):
        lora.merge_adapters(model.network)
        model.about["model"].update(description.describe_network(model.network))
    report("copying the weights")
    _write_weights(model, folder / WEIGHTS)
    report("exporting the program")
    exported = export_program(model.network, example, is_text=_is_text(model))
    torch.export.save(exported, folder / PROGRAM)
    facts: dict[str, Any] = {"step": item.step, "about": dict(model.about)}
    facts["differences"] = {PROGRAM: _difference(expected, exported.module())}
    report("exporting to ONNX")
    facts["onnx_problem"] = missing_onnx()
    if facts["onnx_problem"] is None:
        write_onnx(exported, folder / ONNX)
        if importlib.util.find_spec("onnxruntime"):
            facts["differences"][ONNX] = _difference(expected, onnx_module(folder / ONNX))
    report("writing the other files")
    if model.about["model"]["name"].startswith("hf_"):
        _write_hugging_face(model, folder / HUGGING_FACE)
    name = _write_example(model, folder)
    (folder / ABOUT).write_text(json.dumps(model.about, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / "predict.py").write_text(program(model.about, name), encoding="utf-8")
    facts["example"] = name
    facts["snippet"] = snippet(model.about)
    report("computing the checksums")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts["files"] = {
        path.relative_to(folder).as_posix(): {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in files
    }
    facts["versions"] = {name: found for name in CHECKED if (found := _version(name)) is not None}
    return facts


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_onnx() -> str | None:
    """Return a sentence with the packages that are missing for model.onnx, or None."""
    absent = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed" if absent else None


def _is_text(model: TrainedModel) -> bool:
    return bool(model.about["input"]["kind"] == TEXT)


def example_input(model: TrainedModel, num: int = 2) -> Tensor:
    """Return a batch of inputs of the right shape and kind."""
    generator = torch.Generator().manual_seed(0)
    shape = (num, *model.spec.input_shape)
    if not _is_text(model):
        return torch.randn(shape, generator=generator)
    high = max(3, model.spec.vocabulary_size)
    return torch.randint(2, high, shape, generator=generator)


def export_program(network: nn.Module, example: Tensor, *, is_text: bool) -> ExportedProgram:
    """Return the network as an exported program for any batch size, which needs no source code of this
    project.

    Texts may also have any length up to that of training, if the model's operations allow it.

    Raises:
        ValueError: if torch.export cannot export it.
    """
    batch = Dim("batch", min=1, max=2**16)
    ways: list[dict[int, Any]] = [{0: batch}]
    if is_text and example.shape[1] > 2:
        ways.insert(0, {0: batch, 1: Dim("length", min=2, max=example.shape[1])})
    problem: Exception | None = None
    for dynamic in ways:
        # Make the example contiguous, because other strides exclude one length.
        shorter = example[:, :-1].contiguous() if 1 in dynamic else example
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(network, (shorter,), dynamic_shapes=(dynamic,), strict=False)
        except Exception as error:  # noqa: BLE001 - the exporter raises errors of many kinds
            problem = error
    raise ValueError(f"the model cannot be exported: {library_error_text(problem or ValueError())[:400]}")


def write_onnx(exported: ExportedProgram, path: Path) -> None:
    """Write an exported program as ONNX, in one file.

    Raises:
        ValueError: if it cannot be translated.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                exported,
                dynamo=True,
                external_data=False,
                input_names=["input"],
                output_names=["scores"],
                verbose=False,
            )
        assert program is not None
        program.save(path, external_data=False)
    except Exception as error:
        raise ValueError(f"the model cannot be written as ONNX: {library_error_text(error)[:400]}") from error


def onnx_module(path: Path) -> Callable[[Tensor], Tensor]:
    """Return a function that runs an ONNX file with onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"input": inputs.numpy()})[0])


@torch.no_grad()
def _difference(expected: list[tuple[Tensor, Tensor]], predict: Callable[[Tensor], Tensor]) -> float:
    """Return the largest difference between a model's outputs and the expected outputs."""
    return max(float((outputs - predict(inputs)).abs().max()) for inputs, outputs in expected)


def _write_weights(model: TrainedModel, path: Path) -> None:
    from safetensors.torch import save_model

    save_model(model.network, str(path), metadata={"format": "pt"})


def _write_hugging_face(model: TrainedModel, folder: Path) -> None:
    """Write a pretrained model and its tokenizer in the layout of transformers."""
    network: Any = model.network
    model_to_save = next(each for each in network.children() if hasattr(each, "save_pretrained"))
    names = dict(enumerate(model.spec.class_names))
    if hasattr(network, "classifier") and names:
        model_to_save.config.id2label = names
        model_to_save.config.label2id = {name: number for number, name in names.items()}
    model_to_save.save_pretrained(folder)
    tokenizer: Any = model.tokenizer
    tokenizer.save(folder)


def _write_example(model: TrainedModel, folder: Path) -> str:
    """Write a validation sample as a file for predict.py, or an input of zeros; return its name."""
    try:
        validation = model.validation()
        inputs, _ = validation.batch(torch.tensor([0]))
    except ValueError:
        validation, inputs = None, torch.zeros((1, *model.spec.input_shape))
    input_description = model.about["input"]
    if input_description["kind"] == IMAGE:
        channels, height, width = input_description["shape"]
        name, kind = ("example.pgm", "P5") if channels == 1 else ("example.ppm", "P6")
        pixels = (inputs[0].float() * (255 / input_description.get("largest", 255))).round().clamp(0, 255)
        content = bytes(pixels.permute(1, 2, 0).flatten().to(torch.uint8).tolist())
        (folder / name).write_bytes(f"{kind}\n{width} {height}\n255\n".encode() + content)
        return name
    if input_description["kind"] == TABLE:
        mean, std = torch.tensor(input_description["mean"]), torch.tensor(input_description["std"])
        numbers = (inputs[0] * std + mean).tolist()
        file, place, cells = io.StringIO(), 0, []
        columns = model.spec.columns
        for column in columns:
            cells.append(column.written(numbers[place : place + column.width]))
            place += column.width
        writer = csv.writer(file)
        writer.writerow([column.name for column in columns])
        writer.writerow(cells)
        (folder / "example.csv").write_text(file.getvalue(), encoding="utf-8")
        return "example.csv"
    text = "It is"
    if model.spec.task != LANGUAGE_MODELLING and validation is not None:
        text = model.text_of(0, inputs[0], MAX_TEXT)
    (folder / "example.txt").write_text(text, encoding="utf-8")
    return "example.txt"


if __name__ == "__main__":
    main()
