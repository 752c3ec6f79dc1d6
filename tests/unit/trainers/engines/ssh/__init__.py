"""Tests of the SSH engine without a host: the site file, scripts, and cached answers."""
