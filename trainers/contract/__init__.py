"""The interface between the page and training: files and their meaning. Imports no torch."""
