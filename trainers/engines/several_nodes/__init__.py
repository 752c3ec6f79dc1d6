"""What engines of several machines share: a launcher on each node, and how the nodes meet."""
