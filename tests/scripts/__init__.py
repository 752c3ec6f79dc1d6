"""User scripts in common styles. They do not contain any watching code; LOSSES names an output file."""
