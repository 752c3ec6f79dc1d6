"""Tests of `trainers/contract`."""
