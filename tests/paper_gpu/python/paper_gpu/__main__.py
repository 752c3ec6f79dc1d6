"""Print the counts of all processes that ran with PAPER_COUNTS=FOLDER: `python -m paper_gpu FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paper_gpu import read_counts

json.dump(read_counts(Path(sys.argv[1])), sys.stdout, indent=2)
print()
