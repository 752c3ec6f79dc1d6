"""What Start would do with a configuration: what can be picked, what fits, what it needs."""
