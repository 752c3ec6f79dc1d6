"""What is minimised, by which optimizer, and the compiled step."""
