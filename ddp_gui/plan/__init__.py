"""The plan of a run before its start: the catalogue, valid combinations, memory needs."""
