"""Saving and restoring everything a run needs to go on bit for bit."""
