"""The parts of showing a login node's page here: its port, its lifeline, its options."""
