"""What every request passes before it is answered."""
