"""Tests of the page in front of a cluster."""
