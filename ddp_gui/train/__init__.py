"""The Train page: the form, its preview and the endpoints that start and control runs."""
