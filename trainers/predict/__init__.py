"""Use of a trained model outside training: predictions, generated text, and a copy to take home."""
