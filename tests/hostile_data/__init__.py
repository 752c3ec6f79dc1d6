"""Malicious files and paths, and the expected response to each."""
