"""Every number in the README and in a note comes from a script here."""
