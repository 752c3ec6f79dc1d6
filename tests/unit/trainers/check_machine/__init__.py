"""Tests of `trainers/check_machine`."""
