"""Training on several nodes, shared by the engines: a launcher on each node, and their rendezvous."""
