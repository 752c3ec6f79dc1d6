"""Tests of starting and resuming runs."""
