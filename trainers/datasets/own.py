"""A person's own data, by its path: images in class folders, a table, or running text."""

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
    # Imported only when picked: what reads all these kinds takes a while that other runs need not spend.
    from trainers.data.own.dataset import Own

    return Own(options)
