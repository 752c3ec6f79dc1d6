"""Copy this file next to your script. It does nothing unless the DDP page runs the script.

import watch

for epoch in range(epochs):
    for inputs, targets in loader:
        ...
        optimizer.step()
        if watch.should_stop():   # the Stop button: True on all ranks after the same step
            break
    watch.log(accuracy=accuracy)  # a curve on the page
"""

import sys

_page = sys.modules.get("_ddp_live_watch")


def log(**values: float) -> None:
    """Show numbers on the page, such as accuracy=0.91; rank 0's are shown."""
    if _page is not None:
        _page.log(values)


def should_stop() -> bool:
    """Return True, on all ranks after the same step, once Stop was pressed."""
    return _page is not None and bool(_page.should_stop())
