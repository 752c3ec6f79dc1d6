"""Tests of the machine page in a browser."""
