"""Tests of `ddp_gui/devices`."""
