"""Tests of `ddp_gui/runs`."""
