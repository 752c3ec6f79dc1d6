"""Who starts next, when and why: the queue of this machine."""
