"""Tests of recorded steps: arithmetic, clocks, and the notes of each rank."""
