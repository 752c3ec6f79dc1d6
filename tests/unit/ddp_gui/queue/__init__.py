"""Tests of `ddp_gui/queue`."""
