"""Tests of `trainers/parallel`."""
