"""Reading and writing files that others may alter, safely."""
