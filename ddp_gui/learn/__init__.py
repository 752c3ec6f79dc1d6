"""Lessons: a learner predicts what a run will do, starts it, and sees why it did so."""
