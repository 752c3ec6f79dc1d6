"""The page on a login node, seen on the person's own machine: their own ssh starts and reaches it."""
