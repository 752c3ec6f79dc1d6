"""A user's own data: tables, images and texts."""

HEIF_REQUIREMENT = "pillow-heif==1.8.1"
