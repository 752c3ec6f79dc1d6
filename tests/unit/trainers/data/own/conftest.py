"""Each test has a cache of prepared data of its own, and inspects data without building every model."""

from tests.unit.own_files import no_models, own_cache

__all__ = ["no_models", "own_cache"]
