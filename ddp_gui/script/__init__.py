"""Run my script: reading a script, completing a listing, starting it, its code."""
