"""Checks and helpers for every HTTP request."""
