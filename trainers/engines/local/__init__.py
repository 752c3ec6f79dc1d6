"""Runs on this machine: torchrun under a supervisor."""
