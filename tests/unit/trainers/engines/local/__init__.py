"""Tests of the engine of one machine."""
