"""The network: its size, and a trained one to start from."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network: its size, and a trained one to start from."""

    model_size: str = setting(
        "", label="Model size", help="Empty: the model's usual size.", topic="model", catalog="model_sizes"
    )
    pretrained_path: str = setting(
        "",
        label="Folder of a trained model",
        help="For fine-tuning: a local folder in Hugging Face format.",
        topic="model",
        max_length=4096,
    )
    hub_offline: bool = setting(
        True,
        label="Stay off the model hub",
        help="On: nothing is fetched from the internet (HF_HUB_OFFLINE=1).",
        topic="model",
    )
