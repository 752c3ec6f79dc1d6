"""The devices of this machine, and which process uses which GPU."""
