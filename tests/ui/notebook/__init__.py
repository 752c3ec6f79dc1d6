"""Tests of runs in notebooks, in a real JupyterLab."""
