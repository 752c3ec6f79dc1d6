"""Records some steps on all ranks: when each part, and each bucket's all-reduce, began and ended."""
