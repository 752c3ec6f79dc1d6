"""What a run is for where it teaches: a mistake built in on purpose, and how often replicas are compared."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting

NO_MISTAKE = "none"


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """What a run is for where it teaches: a mistake built in on purpose, replicas compared."""

    mistake: str = setting(
        NO_MISTAKE,
        label="Broken on purpose",
        help="A mistake that people make with DDP, built in to see what it does. Never for a real run.",
        topic="teaching",
        catalog="mistakes",
    )
    fingerprint_every_steps: int | None = setting(
        None,
        label="Compare replicas every … steps",
        term="fingerprint",
        help="A hash of each rank's weights. Empty: as often as takes at most half a percent of the time; "
        "0: never.",
        topic="teaching",
        minimum=0,
        maximum=10**9,
    )

    @property
    def is_broken_on_purpose(self) -> bool:
        """Whether a mistake is built in: nobody should use what such a run has learnt."""
        return self.mistake != NO_MISTAKE
