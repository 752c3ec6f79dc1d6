"""Tests of the page with a cluster."""
