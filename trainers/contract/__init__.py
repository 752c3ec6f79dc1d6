"""The only door between the page and training: files and their meaning, free of torch."""
