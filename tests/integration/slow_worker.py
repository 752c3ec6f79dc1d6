"""Started by torchrun from a test: the usual worker, but rank 1 dawdles in every forward pass."""

from __future__ import annotations

import os
import time
from typing import Any

from torch import Tensor

from trainers import worker
from trainers.optimisation.objective import Objective

# Long beside what a busy machine holds a rank up for.
DAWDLES_S = 0.4


def main() -> None:
    """Train; the sleep is what makes this rank slow."""
    in_time = Objective.training_loss

    def dawdling(self: Objective, output: Any, targets: Tensor) -> Tensor:
        time.sleep(DAWDLES_S)
        return in_time(self, output, targets)

    if os.environ["RANK"] == "1":
        Objective.training_loss = dawdling  # type: ignore[method-assign]
    worker.end(worker.main())


if __name__ == "__main__":
    main()
