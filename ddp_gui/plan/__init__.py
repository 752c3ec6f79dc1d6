"""What Start would do with a configuration: the catalogue, what fits, memory needs."""
