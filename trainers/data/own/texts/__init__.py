"""Running text."""
