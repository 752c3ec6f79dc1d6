"""Saving and restoring everything that a run needs to resume bit for bit."""
