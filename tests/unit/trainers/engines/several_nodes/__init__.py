"""Tests of what engines of several machines share."""
