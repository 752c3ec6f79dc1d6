"""Runs on a few PCs that are reached by SSH, with a folder that all of them share."""
