"""A page under attack, in a browser."""
