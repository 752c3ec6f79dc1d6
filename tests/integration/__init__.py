"""Real torchrun, two CPU ranks over gloo."""
