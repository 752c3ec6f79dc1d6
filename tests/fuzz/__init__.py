"""Readers of untrusted bytes, tested by Hypothesis (`tests/unit/attacks`)."""
