"""Tests of progress that is kept with accounts."""
