"""Tests of polls."""
