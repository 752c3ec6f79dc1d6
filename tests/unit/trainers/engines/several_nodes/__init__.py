"""Tests of the code that multi-node engines share."""
