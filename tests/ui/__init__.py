"""The page in a real browser, each page of it in its folder."""
