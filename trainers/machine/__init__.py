"""The machine that a run uses: GPUs, processor, processes, environment."""
