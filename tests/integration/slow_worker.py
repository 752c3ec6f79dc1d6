"""Started by torchrun from a test: the usual worker, but rank 1 dawdles in every forward pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from trainers import worker
from trainers.parallel.strategy import Strategy

# Long beside what a busy machine holds a rank up for.
DAWDLES_S = 0.4


def main() -> None:
    """Train; the sleep is what makes this rank slow."""
    in_time = Strategy.forward_backward

    def dawdling(
        self: Strategy, inputs: Tensor, loss_of: Callable[[Any], Tensor], scale: Tensor | None = None
    ) -> Tensor:
        def late(output: Any) -> Tensor:
            time.sleep(DAWDLES_S)
            return loss_of(output)

        return in_time(self, inputs, late, scale)

    if os.environ["RANK"] == "1":
        Strategy.forward_backward = dawdling  # type: ignore[method-assign]
    worker.end(worker.main())


if __name__ == "__main__":
    main()
