"""The page "Run my script", and the run page of a script."""
