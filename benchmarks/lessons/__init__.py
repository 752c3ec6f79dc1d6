"""Whether each lesson shows what it says: real runs, several seeds, seconds from click to reveal."""
