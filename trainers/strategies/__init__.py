"""One file per parallel strategy; each registers itself with `@register_strategy`."""
