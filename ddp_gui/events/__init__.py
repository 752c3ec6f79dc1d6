"""A run's events, read and folded into columns, evaluations and insights."""
