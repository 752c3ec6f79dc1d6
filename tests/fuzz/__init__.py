"""Readers fed with bytes of anybody's making, by atheris (`python -m tests.fuzz`) and by hypothesis."""
