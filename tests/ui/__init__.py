"""Tests of the pages in a real browser, with one folder per page."""
