"""Tests of the page's JavaScript modules that need no browser."""
