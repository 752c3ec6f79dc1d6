"""Tests of the page "Run my script" and of the run page of a script."""
