"""The Slurm engine: runs as jobs of a cluster, submitted by the user who started the page."""
