"""Fault injection: data loss, reported state, leftover processes and recovery time."""
