"""One file per task; each registers with `@register_task` its loss, metrics, sample and words."""
