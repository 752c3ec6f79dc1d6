"""Course of diabetes in 442 patients (Efron et al. 2004); the table that scikit-learn includes."""

from __future__ import annotations

from trainers.data import ASSETS_DATA, TABULAR_REGRESSION
from trainers.data.tables import BundledTable
from trainers.registry import register_dataset


@register_dataset("diabetes", label="Diabetes progression")
class Diabetes(BundledTable):
    """Ten measurements; the target is a number."""

    file = ASSETS_DATA / "diabetes.csv.gz"
    task = TABULAR_REGRESSION
    sample_unit = "patients"
    description = (
        "The model predicts the progression of diabetes within a year, as a number, from ten measurements. "
        "A hard task: about half of the variance can be explained."
    )
    source = "Efron et al. 2004 (Least Angle Regression) / scikit-learn, BSD 3-Clause"
