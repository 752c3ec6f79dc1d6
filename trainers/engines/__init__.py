"""How a run is started, watched and ended."""
