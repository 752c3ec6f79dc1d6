"""Tests of `trainers/report`."""
