"""The Train page: the form and everything around it."""
