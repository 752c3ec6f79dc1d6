"""What a hostile or damaged input may not do."""
