"""Tests of how a run of this machine is stopped, killed and watched."""
