"""Recorded reference results, with which later results are compared."""
