"""Tests of `trainers/models`."""
