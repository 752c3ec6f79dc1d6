"""A run's numbers as files: CSV, JSON and TensorBoard's."""
