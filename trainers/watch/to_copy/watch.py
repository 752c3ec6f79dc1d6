"""Copy this file next to your script. Its functions have an effect only if the DDP page runs the script.

import watch

# In a resumed run: the saved values; in a new run: None
saved = watch.load(model=model, optimizer=optimizer) or {"epoch": 0, "batch": 0}
for epoch in range(saved["epoch"], epochs):
    for batch, (inputs, targets) in enumerate(loader):
        if epoch == saved["epoch"] and batch < saved["batch"]:
            continue  # trained before the checkpoint
        ...
        optimizer.step()
        # Saves if you have pressed Checkpoint or Stop.
        watch.save(model=model, optimizer=optimizer, epoch=epoch, batch=batch + 1)
        if watch.should_stop():  # True on all ranks after the same step if you have pressed Stop
            sys.exit()
    watch.log(accuracy=accuracy)  # shown as a curve on the page
"""

import sys
from typing import Any

_page = sys.modules.get("_ddp_live_watch")


def log(**values: float) -> None:
    """Show numbers on the page, such as accuracy=0.91; only rank 0's numbers are shown."""
    if _page is not None:
        _page.log(values)


def should_stop() -> bool:
    """Return True once Stop was pressed. The answer changes at the same step on all ranks."""
    return _page is not None and bool(_page.should_stop())


def load(**objects: Any) -> dict[str, Any] | None:
    """Restore objects (with load_state_dict) and the random state in a resumed run; return the other values.

    None in a new run. Call it on all ranks, directly before the training loop.
    """
    return None if _page is None else _page.load(objects)


def save(**state: Any) -> None:
    """Save objects (with state_dict), tensors and plain values, if Checkpoint or Stop was pressed.

    Call it on all ranks, at points from which training can continue.
    """
    if _page is not None:
        _page.save(state)
