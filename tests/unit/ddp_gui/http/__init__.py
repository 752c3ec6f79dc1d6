"""Tests of `ddp_gui/http`."""
