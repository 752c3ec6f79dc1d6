"""Speed on a GPU: this project's job compared with an optimal bare loop of the same model."""
