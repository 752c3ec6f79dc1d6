"""Things that go wrong: what is left, what is said, how soon."""
