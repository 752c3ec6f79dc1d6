"""What this machine offers a run, and which process is on which GPU."""
