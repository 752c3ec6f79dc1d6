"""Runs by SSH, without a host: the site's table, scripts, and what is remembered."""
