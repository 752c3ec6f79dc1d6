"""Whether this machine trains as it should: real short jobs, one after the other, and what came of each."""
