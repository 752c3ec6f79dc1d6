"""The queue of this machine: which run starts next, when and why."""
