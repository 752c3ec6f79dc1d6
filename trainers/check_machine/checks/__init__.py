"""The individual checks, one file each, and the short real jobs that they start."""
