"""Reports of a run: losses, metrics, step times, telemetry."""
