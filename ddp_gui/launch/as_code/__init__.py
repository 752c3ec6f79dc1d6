"""A run as one script of torch and numpy: data, model, loop, and the form in which the page shows it."""
