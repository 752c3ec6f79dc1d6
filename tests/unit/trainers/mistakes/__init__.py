"""Tests of `trainers/mistakes`."""
