"""Tests of the runs page in a browser."""
