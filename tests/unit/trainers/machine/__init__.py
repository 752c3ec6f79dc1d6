"""Tests of `trainers/machine`."""
