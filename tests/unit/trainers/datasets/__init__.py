"""Tests of `trainers/datasets`."""
