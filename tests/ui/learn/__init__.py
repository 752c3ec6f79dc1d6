"""Tests of the lessons in the browser."""
