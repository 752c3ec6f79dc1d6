"""Tests of hostile and damaged input."""
