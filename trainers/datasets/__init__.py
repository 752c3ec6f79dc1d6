"""One file per data set; each registers itself with `@register_dataset`."""
