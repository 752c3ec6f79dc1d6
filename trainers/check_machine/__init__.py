"""Checks whether this machine trains correctly, with short real jobs, one after the other."""
