"""Cells of 569 breast tumours (Wolberg, Street, Mangasarian 1995); the table that scikit-learn includes."""

from __future__ import annotations

from trainers.data import ASSETS_DATA, TABULAR_CLASSIFICATION
from trainers.data.tables import BundledTable
from trainers.registry import register_dataset


@register_dataset("breast_cancer", label="Breast cancer (Wisconsin)")
class BreastCancer(BundledTable):
    """Two diagnoses, thirty measurements of cell nuclei."""

    file = ASSETS_DATA / "breast_cancer.csv.gz"
    task = TABULAR_CLASSIFICATION
    sample_unit = "tumours"
    description = (
        "The model predicts whether a breast tumour is malignant or benign, from measurements of its "
        "cells. For teaching, not for medical use."
    )
    source = "UCI / scikit-learn, CC BY 4.0"
