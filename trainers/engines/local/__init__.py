"""The local engine: torchrun under a supervisor, on this machine."""
