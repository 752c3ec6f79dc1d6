"""Tests, split by cost: unit, integration (real torchrun), faults, ui, gpu."""
