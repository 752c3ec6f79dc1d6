"""Mistakes that people make with DDP, one file each: a class that does one part of training wrong."""
