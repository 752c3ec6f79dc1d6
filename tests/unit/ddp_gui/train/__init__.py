"""Tests of `ddp_gui/train`."""
