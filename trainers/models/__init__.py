"""One file per model; each registers itself with `@register_model`."""
