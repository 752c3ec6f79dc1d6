"""Runs on a host that shares no folder: rsync brings there what they need, and back what they write."""
