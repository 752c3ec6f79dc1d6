"""Tests of `trainers/optimisation`."""
