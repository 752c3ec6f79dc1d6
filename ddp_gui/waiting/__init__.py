"""Runs that wait for GPUs or CPU ranks, and who is next."""
