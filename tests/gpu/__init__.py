"""Tests that need one or two GPUs; skipped, with the reason, if there are too few.

GPU_TESTS_ON_CPU=1 python -m pytest tests/gpu   # on CPU ranks where possible, to check the tests themselves
"""
