"""Two fast starts of a rank: forked from a server that has imported torch, or waiting under torchrun."""
