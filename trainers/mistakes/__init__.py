"""Common mistakes with DDP for lessons: each class replaces one part of training by a wrong version."""
