"""Registers the Slurm engine."""

from __future__ import annotations

from trainers.engines.base import EngineOptions, register_engine
from trainers.engines.slurm.engine import NAME, SlurmEngine
from trainers.machine.os_errors import explain


@register_engine(
    NAME,
    label="the Slurm cluster of this login node",
    uses_site=True,
    one_user="submits every job as the user who started the page",
    is_on_login_node=True,
)
def create(options: EngineOptions) -> SlurmEngine:
    """Return the engine of a cluster whose controller answers.

    Raises:
        ValueError: If the controller does not answer.
    """
    engine = SlurmEngine(site_file=options.site_file)
    try:
        engine.capacity()
    except OSError as error:
        raise ValueError(
            f"--engine slurm needs a login node on which Slurm's commands work: {explain(error)}"
        ) from error
    return engine
