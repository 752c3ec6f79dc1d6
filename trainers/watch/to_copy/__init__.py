"""The module that users copy next to their script."""
