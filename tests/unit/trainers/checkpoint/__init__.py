"""Tests of `trainers/checkpoint`."""
