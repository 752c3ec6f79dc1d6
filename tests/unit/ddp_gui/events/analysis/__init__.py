"""Tests of `ddp_gui/events`."""
