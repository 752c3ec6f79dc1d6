"""Tests of `ddp_gui/launch`."""
