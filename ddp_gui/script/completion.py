"""Completes a code listing with the missing imports, model, data and calls, as marked lines."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ddp_gui.script import reader
from ddp_gui.script.reader import ScriptReading

# Mark at the end of each added line.
ADDED = "  # added"

_IMPORTS = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "optim": "from torch import optim",
    "F": "import torch.nn.functional as F",
    "dist": "import torch.distributed as dist",
    "mp": "import torch.multiprocessing as mp",
    "os": "import os",
    "DDP": "from torch.nn.parallel import DistributedDataParallel as DDP",
    "DistributedDataParallel": "from torch.nn.parallel import DistributedDataParallel",
    "DataLoader": "from torch.utils.data import DataLoader",
    "Dataset": "from torch.utils.data import Dataset",
    "TensorDataset": "from torch.utils.data import TensorDataset",
    "DistributedSampler": "from torch.utils.data.distributed import DistributedSampler",
    "tqdm": "from tqdm import tqdm",
    "np": "import numpy as np",
    "get_ipython": "from unittest.mock import MagicMock as get_ipython",  # of an exported notebook
}
_RANKS = {
    "rank": 'rank = int(os.environ["RANK"])',
    "RANK": 'RANK = int(os.environ["RANK"])',
    "local_rank": 'local_rank = int(os.environ["LOCAL_RANK"])',
    "LOCAL_RANK": 'LOCAL_RANK = int(os.environ["LOCAL_RANK"])',
    "world_size": 'world_size = int(os.environ["WORLD_SIZE"])',
    "WORLD_SIZE": 'WORLD_SIZE = int(os.environ["WORLD_SIZE"])',
}
_NUMBERS = {
    "epochs": "epochs = 3", "num_epochs": "num_epochs = 3", "EPOCHS": "EPOCHS = 3",
    "n_epochs": "n_epochs = 3",
    "batch_size": "batch_size = 32", "BATCH_SIZE": "BATCH_SIZE = 32", "lr": "lr = 1e-3",
    "learning_rate": "learning_rate = 1e-3", "criterion": "criterion = torch.nn.CrossEntropyLoss()",
    "loss_fn": "loss_fn = torch.nn.CrossEntropyLoss()", "device": 'device = "cpu"',
}  # fmt: skip
_DATASETS = ("dataset", "train_dataset", "train_set", "trainset", "train_data", "data", "training_data")

# Models and data for the kinds of batches that a listing may use: pairs, tensors whose loss the model
# returns, or dictionaries.
_PAIRS = """
class {model}(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(),
                                          torch.nn.Linear(32, 10))
    def forward(self, x):
        return self.layers(x)
"""
_PAIRS_DATA = """
_images = torch.rand(512, 1, 8, 8, generator=torch.Generator().manual_seed(0))
{dataset} = torch.utils.data.TensorDataset(_images, (_images.mean((1, 2, 3)) * 97).long() % 10)
"""
_LOSS = """
class {model}(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    def forward(self, x):
        return (self.layers(x) - x).square().mean()
"""
_LOSS_DATA = """
{dataset} = list(torch.randn(512, 16, generator=torch.Generator().manual_seed(0)))
"""
_DICTS = """
class {model}(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.words, self.head = torch.nn.EmbeddingBag(100, 32), torch.nn.Linear(32, 2)
    def forward(self, input_ids, labels=None, **kwargs):
        from types import SimpleNamespace
        if isinstance(input_ids, dict):
            input_ids, labels = input_ids["input_ids"], input_ids["labels"]
        logits = self.head(self.words(input_ids))
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(logits, labels), logits=logits)
"""
_DICTS_DATA = """
_words = torch.randint(0, 100, (512, 12), generator=torch.Generator().manual_seed(0))
{dataset} = [{{"input_ids": words, "labels": words.sum() % 2}} for words in _words]
"""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A completed listing: its text, the numbers of the added lines, and a sentence about each addition."""

    text: str
    added: tuple[int, ...]
    sentences: tuple[str, ...]
    left: tuple[str, ...]


def complete(text: str) -> Completed | None:
    """Return a listing with its missing definitions added; None if it needs none or cannot be parsed. `left`
    contains the names that could not be defined.
    """
    reading = reader.read(text)
    if reading.problem is not None:
        return None
    addition = _Addition(text, reading)
    if not addition.lines:
        return None
    lines = text.rstrip("\n").split("\n")
    completed: list[str] = []
    added = []
    for number in range(len(lines) + 1):
        for line in addition.lines.get(number, ()):
            completed.append(f"{line}{ADDED}" if line else line)
            added.append(len(completed))
        completed += lines[number : number + 1]
    return Completed(
        text="\n".join(completed) + "\n",
        added=tuple(added),
        sentences=tuple(addition.sentences),
        left=tuple(addition.left),
    )


class _Addition:
    """The lines to add to a listing, by the number of the listing's line after which they are inserted."""

    def __init__(self, text: str, reading: ScriptReading) -> None:
        self._text, self._tree = text, ast.parse(text)
        self.lines: dict[int, list[str]] = {}
        self.sentences: list[str] = []
        missing = list(reading.missing)
        models = [name for name in missing if name not in _IMPORTS and self._is_class(name)]
        datasets = [name for name in missing if name in _DATASETS]
        imports = [name for name in missing if name in _IMPORTS]
        ranks = [name for name in missing if name in _RANKS]
        numbers = [name for name in missing if name in _NUMBERS]
        self.left = [name for name in missing if name not in {*models, *datasets, *imports, *ranks, *numbers}]
        calls = self._add_calls(reading)
        needed = {"torch"} if models or datasets or {"criterion", "loss_fn"} & set(numbers) else set()
        needed |= {"os"} if calls and "os" not in self._imported() else set()
        # Lines added at the beginning run before the imports of the listing.
        needed |= {"os"} if ranks else set()
        imports = sorted(needed - set(imports)) + imports
        self._add_head(imports, ranks, numbers, models, datasets)

    def _imported(self) -> set[str]:
        return {
            alias.asname or alias.name
            for node in self._tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
        }

    def _add_head(
        self,
        imports: list[str],
        ranks: list[str],
        numbers: list[str],
        models: list[str],
        datasets: list[str],
    ) -> None:
        head = [_IMPORTS[name] for name in imports] + [_RANKS[name] for name in ranks]
        head += [_NUMBERS[name] for name in numbers]
        model_text, data_text = self._stand_ins()
        for name in models:
            head += _block(model_text.format(model=name))
        for name in datasets:
            head += _block(data_text.format(dataset=name))
        if head:
            self.lines[self._place_for_head()] = head
        for names, sentence in (
            (imports, "imported"),
            (ranks, "from the environment that torchrun gives each process"),
            (numbers, "a usual value"),
            (models, "a small model was added"),
            (datasets, "512 generated samples were added"),
        ):
            if names:
                self.sentences.append(f"{', '.join(names)}: {sentence}.")

    def _add_calls(self, reading: ScriptReading) -> bool:
        """Add the calls of functions that nothing calls; return True if any was added."""
        end = len(self._text.rstrip("\n").split("\n"))
        has_added = False
        if reading.uncalled is not None:
            has_added = self._add_call(reading.uncalled, end)
        elif reading.uncalled_setup is not None:
            function = self._function(reading.uncalled_setup)
            has_added = self._add_call(reading.uncalled_setup, function.end_lineno or end)
            if has_added and reading.uncalled_cleanup is not None:
                self._add_call(reading.uncalled_cleanup, end)
        return has_added

    def _add_call(self, name: str, after: int) -> bool:
        arguments = self._function(name).args
        num_wanted = len(arguments.args) - len(arguments.defaults)
        values = [_argument(arg.arg) for arg in arguments.args[:num_wanted]]
        if None in values:
            return False
        call = f"{name}({', '.join(str(value) for value in values)})"
        self.lines.setdefault(after, []).extend(["", call])
        self.sentences.append(f"{name}(): a call was added, because the script does not call this function.")
        return True

    def _function(self, name: str) -> ast.FunctionDef:
        return next(
            node for node in self._tree.body if isinstance(node, ast.FunctionDef) and node.name == name
        )

    def _is_class(self, name: str) -> bool:
        """True if a name is called like a class."""
        return name[:1].isupper() and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
            for node in ast.walk(self._tree)
        )

    def _place_for_head(self) -> int:
        """Return the line after which additions begin: after a docstring and __future__ imports."""
        end = 0
        for number, node in enumerate(self._tree.body):
            is_docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if not (is_docstring or is_future):
                break
            end = node.end_lineno or end
        return end

    def _stand_ins(self) -> tuple[str, str]:
        """Return the source of a model and data that fit the batches of the listing's training loop."""
        loops = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.For) and "backward" in ast.unparse(node)
        ]
        if any(isinstance(loop.target, ast.Tuple) for loop in loops):
            return _PAIRS, _PAIRS_DATA
        if any(mark in self._text for mark in (".items()", ").loss", "**batch", 'batch["', "batch['")):
            return _DICTS, _DICTS_DATA
        return (_LOSS, _LOSS_DATA) if loops else (_PAIRS, _PAIRS_DATA)


def _block(text: str) -> list[str]:
    return text.strip("\n").split("\n")


def _argument(name: str) -> str | None:
    variable = _VARIABLES.get(name.lower())
    if variable is not None:
        return f'int(os.environ["{variable}"])'
    return "3" if name.lower() in ("epochs", "num_epochs", "n_epochs") else None


_VARIABLES = {
    "rank": "RANK", "global_rank": "RANK", "local_rank": "LOCAL_RANK", "gpu": "LOCAL_RANK",
    "world_size": "WORLD_SIZE", "n_gpus": "WORLD_SIZE", "num_gpus": "WORLD_SIZE",
}  # fmt: skip
