"""Tests of `trainers/plugins`."""
