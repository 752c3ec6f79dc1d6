"""Analysis of a run's events: learning, speed, insights, load of other programs."""
