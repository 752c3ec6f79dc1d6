"""How a run on this machine is stopped: what is asked for, when force is used, and who sees to it."""
