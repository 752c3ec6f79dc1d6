"""Running text: plain files, as characters or tokens."""
