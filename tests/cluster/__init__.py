"""Several hosts on one machine: network namespaces that run the real daemons of a cluster."""
