"""What needs a GPU, or two; skipped, with the reason, where there is none.

GPU_TESTS_ON_CPU=1 python -m pytest tests/gpu   # on CPU ranks, where that makes sense: are the tests right?
"""
