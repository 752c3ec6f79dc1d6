"""Safe reading and writing of files that others may modify."""
