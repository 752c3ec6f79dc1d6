"""The checks, one file each, and the short real jobs they start."""
