"""Background work: threads, short-lived processes, files generated while they are sent."""
