"""Tests, split by what they cost: unit, integration (real torchrun), faults, ui, gpu."""
