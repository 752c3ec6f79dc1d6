"""Attacks on a page in a browser."""
