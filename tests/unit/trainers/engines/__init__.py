"""Tests of `trainers/engines`."""
