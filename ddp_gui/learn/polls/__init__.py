"""Polls: a class predicts together, then watches one run; with logins, or anonymously by a QR code."""
