"""Runs a user's script with hooks. Imports only torch, the standard library and `contract/`."""
