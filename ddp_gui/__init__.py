"""The page: the user interface and its server. Imports no torch."""
