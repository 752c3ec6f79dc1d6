"""Images in class folders or a zip."""
