"""Training in real torchrun jobs; works from the command line, without the page."""
