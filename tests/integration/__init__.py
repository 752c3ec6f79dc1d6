"""Integration tests: real torchrun, two CPU ranks over gloo."""
