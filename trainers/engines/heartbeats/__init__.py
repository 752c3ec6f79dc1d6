"""The signs of life between ranks and their supervisor."""
