"""The page of a single run: live charts, logs, summary and downloads."""
