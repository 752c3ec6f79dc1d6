"""Tests of `trainers/watch`."""
