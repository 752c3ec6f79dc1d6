"""The machine below a run: GPUs, processor, processes, environment."""
