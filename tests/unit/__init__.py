"""Unit tests: modules in isolation, without training processes and GPUs."""
