"""Using trained models: inputs, answers, and the process that gives them."""
