"""A copy of the training half with a model that misbehaves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.harness import REPOSITORY

_MODEL = '''
"""A model that misbehaves on rank 1 at step 5."""

import os
import time
from dataclasses import replace

from torch import nn

from trainers.models.mlp import build as build_mlp
from trainers.registry import register_model


class Misbehaves(nn.Module):
    def __init__(self, spec, options):
        super().__init__()
        self.network = build_mlp(spec, replace(options, size="small"))
        self.num_steps = 0

    def forward(self, x):
        self.num_steps += self.training
        if self.num_steps == 5 and os.environ["RANK"] == "1":
            MISBEHAVIOUR
        return self.network(x)


@register_model("misbehaves", label="Misbehaves", description="For a test.", tasks=("image_classification",))
def build(spec, options):
    return Misbehaves(spec, options)
'''


def misbehaving(how: str, *, rank: int = 1, step: int = 5) -> dict[str, str]:
    """Return the plugin file of a model that behaves this way on a rank at a step."""
    text = _MODEL.replace("== 5", f"== {step}").replace('"1"', f'"{rank}"').replace("MISBEHAVIOUR", how)
    return {"trainers/models/misbehaves.py": text}


def repository_with(files: Mapping[str, str], folder: Path) -> Path:
    """Copy the training half into a folder, add files to it, and return the root of the copy."""
    root = folder / "repository"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "trainers", root / "trainers", ignore=ignore)
    (root / "assets").mkdir()
    (root / "assets" / "data").symlink_to(REPOSITORY / "assets" / "data")
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    return root
