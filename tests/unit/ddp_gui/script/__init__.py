"""Tests of `ddp_gui/script`."""
