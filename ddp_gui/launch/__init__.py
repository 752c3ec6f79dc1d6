"""Starts, resumes and stops runs, and keeps warm ranks ready."""
