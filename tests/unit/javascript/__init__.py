"""The page's JavaScript modules that need no browser."""
