"""A user's own data, by path: images in class folders, a table, or running text."""

from __future__ import annotations

from trainers.data import DataOptions, Dataset
from trainers.data.own import HEIF_REQUIREMENT
from trainers.registry import register_dataset


@register_dataset(
    "own",
    label="Your own data",
    needs_path=True,
    optional={HEIF_REQUIREMENT: "HEIC images of your own"},
)
def own(options: DataOptions) -> Dataset:
    """Return the data at `options.path`; see `trainers.data.own`."""
    # Imported here because the readers of all formats are slow to import.
    from trainers.data.own.dataset import Own

    return Own(options)
