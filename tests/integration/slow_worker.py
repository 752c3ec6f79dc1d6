"""The standard worker, but rank 1 sleeps in every forward pass. Started by torchrun in a test."""

from __future__ import annotations

import os
import time
from typing import Any

from torch import Tensor

from trainers import worker
from trainers.optimisation.objective import Objective

# Much longer than the delays of a busy machine.
DAWDLES_S = 0.4


def main() -> None:
    """Train with a sleep in the loss of rank 1."""
    in_time = Objective.training_loss

    def dawdling(self: Objective, output: Any, targets: Tensor) -> Tensor:
        time.sleep(DAWDLES_S)
        return in_time(self, output, targets)

    if os.environ["RANK"] == "1":
        Objective.training_loss = dawdling  # type: ignore[method-assign]
    worker.end(worker.main())


if __name__ == "__main__":
    main()
