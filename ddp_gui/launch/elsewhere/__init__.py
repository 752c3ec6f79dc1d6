"""Files that take a run to other machines: one module a target, each a function from a job to a text."""
