"""Tests of `ddp_gui/auth`."""
