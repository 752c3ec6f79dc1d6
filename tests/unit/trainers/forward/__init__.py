"""Tests of `trainers/forward`."""
