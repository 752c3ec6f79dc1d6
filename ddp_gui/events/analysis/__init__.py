"""What a run's events mean: does it learn, how fast is it, what stands out, who disturbed it."""
