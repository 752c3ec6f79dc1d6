"""Tests of `ddp_gui/machine`."""
