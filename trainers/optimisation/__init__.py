"""The objective, the optimizer and learning rate, and torch.compile."""
