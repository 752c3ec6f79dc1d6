"""What a run tells of itself: losses, metrics, step times, telemetry."""
