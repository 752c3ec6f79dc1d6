"""Runs as scripts: the texts of data sets and networks, and what a script contains."""
