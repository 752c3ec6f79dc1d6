"""Tests of `trainers/data`."""
