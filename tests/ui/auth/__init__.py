"""Tests of logins and of a class in a browser."""
