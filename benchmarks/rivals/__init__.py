"""The same training in other frameworks: alternatives to this project."""
