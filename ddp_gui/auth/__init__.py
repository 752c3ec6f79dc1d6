"""Accounts, sessions and permissions."""
