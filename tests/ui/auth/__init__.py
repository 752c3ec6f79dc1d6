"""Tests of logging in and of a class in a browser."""
