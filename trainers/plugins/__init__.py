"""What the page is told of what can be picked, and of a person's own data."""
