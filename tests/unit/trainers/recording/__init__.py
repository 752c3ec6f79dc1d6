"""Tests of recorded steps: the arithmetic, the clocks, who notes what."""
