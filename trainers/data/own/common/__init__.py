"""What all kinds of own data share: problems, limits, prepared data on disk."""
