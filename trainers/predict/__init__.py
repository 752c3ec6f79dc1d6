"""Use of a trained model outside of training: predictions, generated text, and exports."""
