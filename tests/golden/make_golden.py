"""Write the golden losses of a seeded 2-rank run: `python tests/golden/make_golden.py`.

Run it only for a change that is meant to alter the computation, and mention that in the commit message.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LOSSES = Path(__file__).with_name("losses_digits_mlp.json")
NUM_STEPS = 40
CONFIG = {
    "dataset": "digits",
    "model": "mlp",
    "nproc_per_node": 2,
    "batch_size": 32,
    "device": "cpu",
    "seed": 0,
    "learning_rate": 0.002,
}


def main() -> None:
    """Train the run and write its losses."""
    from tests.harness import Launcher

    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        live = launcher.start(**CONFIG, max_steps=NUM_STEPS, num_epochs=1000)
        status = live.wait_for_end()
        assert status.state == "finished", live.story()
        losses = [live.losses()[step] for step in range(1, NUM_STEPS + 1)]
        launcher.close()
    LOSSES.write_text(json.dumps({"config": CONFIG, "losses": losses}, indent=1) + "\n", encoding="utf-8")
    print(f"{LOSSES}: {NUM_STEPS} losses, from {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
