"""A run's events read and folded into what is shown: columns, evaluations, insights."""
