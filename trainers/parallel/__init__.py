"""Communication between ranks: the process group, devices and the interface of strategies."""
