"""Tests of `ddp_gui/background`."""
