"""Answers to the lessons in code, right and wrong, and a program that runs and checks them."""
