"""What every request passes, whatever answers it."""
