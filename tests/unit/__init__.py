"""No process of a job, no GPU: the modules by themselves."""
