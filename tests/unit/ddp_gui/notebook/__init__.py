"""Tests of `ddp_gui/notebook`."""
