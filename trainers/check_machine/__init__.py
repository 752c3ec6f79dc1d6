"""The machine check: short real jobs, one after another, that show whether this machine trains correctly."""
