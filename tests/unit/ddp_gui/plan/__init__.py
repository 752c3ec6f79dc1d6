"""Tests of `ddp_gui/plan`."""
