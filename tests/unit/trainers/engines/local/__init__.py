"""Tests of the local engine."""
