"""Files that take a run elsewhere."""
