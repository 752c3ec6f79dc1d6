"""Tests of `ddp_gui/gradio_routes`."""
