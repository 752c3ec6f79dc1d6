"""The list of runs: rows, notes, comparison and the bin."""
