"""The page: what a person sees and clicks. Imports no torch."""
