"""Several machines on one: network namespaces, and real daemons of a real cluster in them."""
