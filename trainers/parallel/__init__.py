"""Ranks working together: the process group, devices, and what the loop asks of a strategy."""
