"""Registers the engine of this machine."""

from __future__ import annotations

from trainers.contract.status import LOCAL
from trainers.engines.base import EngineOptions, register_engine
from trainers.engines.local.engine import LocalEngine
from trainers.engines.local.warm_pool import WarmPool


@register_engine(LOCAL, label="this machine")
def create(options: EngineOptions) -> LocalEngine:
    """Return the engine, with a warm pool unless the options exclude it."""
    return LocalEngine(WarmPool(options.runs_dir, is_on=options.keeps_ready))
