"""The network: its size, and a pretrained one to start from."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network: its size, and a pretrained one to start from."""

    model_size: str = setting(
        "", label="Model size", help="Empty: the model's default size.", topic="model", catalog="model_sizes"
    )
    pretrained_path: str = setting(
        "",
        label="Folder of a pretrained model",
        help="For fine-tuning: a local folder in Hugging Face format.",
        topic="model",
        max_length=4096,
    )
    hub_offline: bool = setting(
        True,
        label="Offline (no model hub)",
        help="On: nothing is downloaded (HF_HUB_OFFLINE=1).",
        topic="model",
    )
