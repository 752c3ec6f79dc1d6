"""Training: real torchrun jobs, usable by hand and without the page."""
