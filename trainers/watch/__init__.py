"""Runs a user's script with hooks that report what it does: torch, the standard library and `contract/`."""
