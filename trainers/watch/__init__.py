"""Runs a user's script with hooks that report its steps. Imports only torch, the standard library and
`contract/`.
"""
