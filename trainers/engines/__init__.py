"""Engines: the ways to start, watch and end a run."""
