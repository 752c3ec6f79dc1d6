# What an administrator fills in once; docs/ondemand.md says how each value is found.

# The project's folder, which all nodes see, with its .venv.
DDP_PROJECT=/opt/ddp-web
# The name by which browsers reach Open OnDemand.
DDP_PORTAL=ondemand.example.edu
# The addresses from which Open OnDemand's web server reaches the nodes, joined by commas.
DDP_PROXY_FROM=192.0.2.10
# A site file (docs/site.md) for runs that are Slurm jobs of their own; empty: none.
DDP_SITE=
# Below it are each person's runs; every node sees it.
DDP_RUNS="$HOME/ddp-web/runs"
