"""Saves and restores everything that a run needs to resume bit for bit."""
