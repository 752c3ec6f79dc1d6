"""Tests of `trainers/engines/slurm`."""
