"""Why a run hangs or has ended badly."""
