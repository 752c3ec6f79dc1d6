"""One file per task; each registers its loss, metrics, sample and labels with `@register_task`."""
