"""Scripts in common styles, as users bring them. No line knows that it is watched; LOSSES names a file."""
