"""Speed on a GPU: this project's job against the best bare loop of the same model."""
