"""Learn: lessons in which somebody predicts what a run will do, starts it, and sees why."""
