"""What the Machine page shows: one report, made of quick readings and of slow looks beside them."""
