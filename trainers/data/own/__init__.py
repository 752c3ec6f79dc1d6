"""A person's own data: recognised, checked by name and line, prepared once, and read in batches."""
