"""Sends a run's events to an experiment tracker during training, in a separate process."""
