"""The standard worker, but each rank records the samples that it loads. Started by torchrun in a test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainers import worker
from trainers.data.loading import Loader

# Environment variable with the output folder.
ADDRESS = "TEST_NOTES_LOADED_SAMPLES_IN"


def main() -> None:
    """Train, and write one line per micro-batch with the samples taken from the split."""
    picked = Loader._picked
    notes = Path(os.environ[ADDRESS], f"rank_{os.environ['RANK']}.jsonl")

    def noting(self: Loader, first_sample: int) -> Iterator[Any]:
        with notes.open("a", encoding="utf-8") as file:
            for micro, inputs, targets in picked(self, first_sample):
                # A micro-batch of weight 0 only lets this rank participate.
                samples = micro.indices.tolist() if micro.weight > 0 else []
                assert micro.weight == 0 or len(samples) == len(inputs)
                print(json.dumps({"samples": samples, "is_last": micro.is_last}), file=file, flush=True)
                yield micro, inputs, targets

    Loader._picked = noting  # type: ignore[method-assign]
    worker.end(worker.main())


if __name__ == "__main__":
    main()
