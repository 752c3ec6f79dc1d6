"""Tests of `ddp_gui/learn`."""
