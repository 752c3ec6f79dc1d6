"""Descriptions for the page: models, data sets, strategies, and the user's own data."""
