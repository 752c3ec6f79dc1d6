"""What needs a GPU; skipped, with the reason, where there is none."""
