"""Tests of the train page in a browser."""
