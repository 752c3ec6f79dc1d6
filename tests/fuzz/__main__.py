"""Fuzz one reader with atheris (`pip install atheris`).

    python -m tests.fuzz events --seconds 600 --corpus /tmp/corpus/events

Targets: events, contract, csv, text, zip, image, parquet. Stops at the first finding and writes its input to
the parent of the corpus folder; `--again FILE` runs a single input.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import sys
import warnings
from pathlib import Path

import atheris

WATCHED = ["trainers.data.own", "trainers.contract", "ddp_gui", "PIL", "zipfile"]

with atheris.instrument_imports(include=WATCHED):
    from PIL import Image

    Image.init()
    from tests.fuzz import targets

MAX_INPUT_BYTES = 16_384
COLLECT_EVERY = 20  # errors hold frames with megabytes of data, so collect more often than Python does


def main() -> None:
    """Fuzz until the time limit or the first finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=targets.TARGETS)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--again", type=Path)
    asked = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    targets.without_cache()
    target = targets.TARGETS[asked.target]
    if asked.again is not None:
        target(asked.again.read_bytes())
        return
    asked.corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.seeds(asked.target)):
        (asked.corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={asked.seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-artifact_prefix={asked.corpus.parent}/{asked.target}-",
        "-timeout=30",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
    ]
    runs = itertools.count(1)

    def once(data: bytes) -> None:
        target(data)
        if next(runs) % COLLECT_EVERY == 0:
            gc.collect()

    atheris.Setup([sys.argv[0], *options, str(asked.corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
