"""The repository itself: its house, documents, tools and tests."""
