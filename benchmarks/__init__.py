"""Scripts that produce every figure in the README and the notes."""
