"""The page of one run: its live numbers, logs, summary and downloads."""
