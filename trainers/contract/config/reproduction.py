"""Name, device, and whether the same bits come out every time."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Name, device, and whether the same bits come out every time."""

    name: str = setting("", label="Name", help="A name for the list of runs. Optional.", topic="reproduce")
    device: str = setting(
        "auto",
        label="Device",
        term="CPU rank",
        help="auto uses the GPUs if there are any, else the CPU.",
        topic="reproduce",
        choices=("auto", "cpu", "cuda"),
    )
    deterministic: bool = setting(
        False,
        label="Deterministic",
        help="Uses only algorithms that give identical bits every time. CPU ranks do so with or without it; "
        "GPUs only with it, and can be slower.",
        topic="reproduce",
    )

    def repeats_bits(self, device_kind: str) -> bool:
        """Return True if the run computes the same bits again on as many ranks of this kind (cuda, cpu).

        On GPUs some kernels add up in whichever order their threads finish, and cuDNN chooses by time.
        """
        return device_kind == "cpu" or self.deterministic
