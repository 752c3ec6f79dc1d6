"""Tests of `trainers`."""
