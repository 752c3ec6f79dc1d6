"""Exports a run as one script that uses only torch and numpy, with data, model and training loop."""
