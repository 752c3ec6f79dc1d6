"""Runs as jobs of a Slurm cluster, submitted as the person who started the page."""
