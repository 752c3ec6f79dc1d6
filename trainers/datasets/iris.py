"""Measurements of 150 iris flowers of three species (Fisher 1936); the table that scikit-learn includes."""

from __future__ import annotations

from trainers.data import ASSETS_DATA, TABULAR_CLASSIFICATION
from trainers.data.tables import BundledTable
from trainers.registry import register_dataset


@register_dataset("iris", label="Iris flowers")
class Iris(BundledTable):
    """Three species, four measurements."""

    file = ASSETS_DATA / "iris.csv.gz"
    task = TABULAR_CLASSIFICATION
    sample_unit = "flowers"
    description = (
        "The model predicts which of three species an iris is, from the size of its petals and sepals."
    )
    source = "UCI / scikit-learn, CC BY 4.0"
