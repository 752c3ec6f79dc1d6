"""Tests of `ddp_gui/exports`."""
