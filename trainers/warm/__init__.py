"""Two quicker starts of a rank: forked from a server that has imported torch, or kept ready by torchrun."""
