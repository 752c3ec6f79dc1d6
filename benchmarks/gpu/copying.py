"""Time of one copy from the device into pinned memory: the lower bound of a checkpoint's stall.

python -m benchmarks.gpu.copying --bytes N --out FILE
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch


def main() -> None:
    """Copy repeatedly and write the seconds of each copy."""
    parser = argparse.ArgumentParser(description="Time copies from the device into host memory.")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    here = torch.ones(options.bytes, dtype=torch.uint8, device=options.device)
    # Touched once, as a checkpoint's memory is: the system allocates pages at their first use.
    host = torch.empty(options.bytes, dtype=torch.uint8, pin_memory=is_gpu).zero_()
    took_s = []
    for _ in range(options.times):
        if is_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        host.copy_(here, non_blocking=True)
        if is_gpu:
            torch.cuda.synchronize()
        took_s.append(time.perf_counter() - began)
    if not bool(host.all()):
        raise RuntimeError("the copy is not what was copied")
    options.out.write_text(json.dumps(took_s))


if __name__ == "__main__":
    main()
