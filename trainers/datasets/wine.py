"""Chemical analyses of 178 wines of three cultivars (Forina et al. 1988); scikit-learn's table."""

from __future__ import annotations

from trainers.data import ASSETS_DATA, TABULAR_CLASSIFICATION
from trainers.data.tables import BundledTable
from trainers.registry import register_dataset


@register_dataset("wine", label="Wines")
class Wine(BundledTable):
    """Three cultivars, thirteen measurements."""

    file = ASSETS_DATA / "wine.csv.gz"
    task = TABULAR_CLASSIFICATION
    sample_unit = "wines"
    description = "The model predicts which of three grapes a wine was made of, from its chemical analysis."
    source = "UCI / scikit-learn, CC BY 4.0"
