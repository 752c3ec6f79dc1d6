"""Tests of the page of one run in a browser."""
