"""What each kind of data can do: be looked at, be prepared, be described, be read in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from trainers.data.dataset import DataSpec, Split
from trainers.data.own.common.problems import Problems
from trainers.data.own.common.store import Prepared

# Up to this size a split is held in memory whole, on the device of the model.
SMALL_BYTES = 256 * 2**20

InspectionType = TypeVar("InspectionType")


class Kind(Protocol[InspectionType]):
    """Images in class folders, a table, or running text, at one path with one set of options."""

    name: str

    def options(self) -> dict[str, object]:
        """Return what, beside the files, decides what is prepared."""
        ...

    def inspect(self, problems: Problems) -> InspectionType:
        """Read what is needed to say what the data is; its faults are added to `problems`."""
        ...

    def about(self, inspection: InspectionType) -> dict[str, Any]:
        """Return task, columns, label column and preview for the page."""
        ...

    def estimate(self, inspection: InspectionType) -> DataSpec | None:
        """Describe the data as well as a look allows; None when only its preparation can tell."""
        ...

    def prepare(self, inspection: InspectionType, folder: Path, problems: Problems) -> dict[str, Any]:
        """Write the arrays into the folder; return the meta data, `arrays` among them.

        Raises:
            DataError: when faults are found on the way.
        """
        ...

    def spec(self, prepared: Prepared) -> DataSpec:
        """Describe the prepared data."""
        ...

    def splits(self, prepared: Prepared, device: torch.device) -> tuple[Split, Split]:
        """Return training and validation; larger ones than `SMALL_BYTES` are read from the disk."""
        ...
