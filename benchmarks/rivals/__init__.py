"""The same training as others write it: what a person would use instead of this project."""
