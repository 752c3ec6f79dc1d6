"""Tests of the repository: structure, documents, tools and tests."""
