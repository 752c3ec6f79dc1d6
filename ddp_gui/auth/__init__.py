"""Accounts, sessions and rights: who asks, and what they may see and do."""
