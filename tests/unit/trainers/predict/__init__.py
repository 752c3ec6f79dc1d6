"""Tests of trained models: inputs, predictions, and the process that serves them."""
