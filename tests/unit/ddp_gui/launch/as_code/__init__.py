"""Tests of runs as scripts: code of data sets and networks, and the contents of a script."""
