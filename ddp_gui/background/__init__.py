"""Work beside the requests: threads, short-lived processes, what is made while it is sent."""
