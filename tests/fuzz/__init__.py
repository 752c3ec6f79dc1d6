"""Readers of untrusted bytes, tested by atheris (`python -m tests.fuzz`) and by hypothesis."""
