"""Tests of the queue page in a browser."""
