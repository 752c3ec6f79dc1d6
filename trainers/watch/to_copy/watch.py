"""Copy this file next to your script. It does nothing unless the DDP page runs the script.

import watch

# Resume: the saved values; None in a new run
saved = watch.load(model=model, optimizer=optimizer) or {"epoch": 0, "batch": 0}
for epoch in range(saved["epoch"], epochs):
    for batch, (inputs, targets) in enumerate(loader):
        if epoch == saved["epoch"] and batch < saved["batch"]:
            continue  # trained before the checkpoint
        ...
        optimizer.step()
        # Writes if Checkpoint or Stop was pressed.
        watch.save(model=model, optimizer=optimizer, epoch=epoch, batch=batch + 1)
        if watch.should_stop():  # the Stop button: True on all ranks after the same step
            sys.exit()
    watch.log(accuracy=accuracy)  # a curve on the page
"""

import sys
from typing import Any

_page = sys.modules.get("_ddp_live_watch")


def log(**values: float) -> None:
    """Show numbers on the page, such as accuracy=0.91; rank 0's are shown."""
    if _page is not None:
        _page.log(values)


def should_stop() -> bool:
    """Return True, on all ranks after the same step, once Stop was pressed."""
    return _page is not None and bool(_page.should_stop())


def load(**objects: Any) -> dict[str, Any] | None:
    """Restore objects (with load_state_dict) and the random state in a resumed run; return the other values.

    None in a new run. Call it on all ranks, directly before the training loop.
    """
    return None if _page is None else _page.load(objects)


def save(**state: Any) -> None:
    """Save objects (with state_dict), tensors and plain values, if Checkpoint or Stop was pressed.

    Call it on all ranks, wherever the training could continue from.
    """
    if _page is not None:
        _page.save(state)
