"""Tests of `trainers/files`."""
