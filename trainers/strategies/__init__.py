"""One file per way to parallelise; each registers itself with `@register_strategy`."""
