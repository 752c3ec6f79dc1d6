"""Tests of `trainers/data/own`."""
