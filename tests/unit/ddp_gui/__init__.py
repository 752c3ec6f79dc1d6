"""Tests of `ddp_gui`."""
