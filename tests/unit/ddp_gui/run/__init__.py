"""Tests of `ddp_gui/run`."""
