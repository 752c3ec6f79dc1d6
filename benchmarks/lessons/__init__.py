"""Checks that each lesson demonstrates its effect: real runs, several seeds, time from click to result."""
