"""The form, generated from the configuration's fields: fields -> controls -> configuration."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ddp_gui.catalogue import Catalogue
from ddp_gui.machine import Machine
from trainers.contract import config as config_module
from trainers.contract.config import Setting

Control = gr.Dropdown | gr.Checkbox | gr.Number | gr.Textbox

TOPIC_TITLES = {"schedule": "How long, how often", "reproduce": "Name, device, reproducibility"}


class Form:
    """The controls of the fields, in the order of the configuration."""

    def __init__(self, catalogue: Catalogue, machine: Machine) -> None:
        self._catalogue = catalogue
        self._machine = machine
        self._defaults = config_module.default_values() | {"nproc_per_node": machine.default_ranks()}
        self.controls: dict[str, Control] = {}

    def add_controls(self, *names: str) -> None:
        """Make the controls of these fields here in the layout."""
        settings = config_module.settings()
        for name in names:
            self.controls[name] = self._control(name, settings[name])

    def fields_of_topic(self, topic: str) -> list[str]:
        """Return the names of a topic's fields."""
        return [name for name, setting in config_module.settings().items() if setting.topic == topic]

    @property
    def names(self) -> list[str]:
        return list(self.controls)

    def to_raw(self, *values: Any) -> dict[str, Any]:
        """Return the configuration the controls' values stand for, as JSON values."""
        return dict(zip(self.names, values, strict=True))

    def model_choices(self, dataset: str) -> list[tuple[str, str]]:
        """Return (label, name) of the models that can learn from a data set."""
        return [(model.label, model.name) for model in self._catalogue.models_for(dataset)]

    def _control(self, name: str, setting: Setting) -> Control:
        label, help_text = self._words(name, setting)
        common: dict[str, Any] = {
            "label": label,
            "info": help_text,
            "value": self._defaults[name],
            "elem_id": f"field-{name}",
        }
        kind = config_module.value_type(name)
        if setting.catalog or setting.choices:
            return gr.Dropdown(choices=self._choices(setting), filterable=False, **common)
        if kind is bool:
            return gr.Checkbox(**common)
        if kind is int:
            return gr.Number(precision=None, **common)
        if kind is float:
            # As text: people write 1e-3, and a wrong word can be answered instead of swallowed.
            return gr.Textbox(**{**common, "value": f"{self._defaults[name]:g}"}, max_lines=1)
        return gr.Textbox(max_lines=1, max_length=setting.max_length, **common)

    def _words(self, name: str, setting: Setting) -> tuple[str, str]:
        if self._machine.num_gpus == 0:
            most = self._machine.max_cpu_ranks
            on_cpu = {
                "nproc_per_node": (
                    f"CPU ranks (up to {most})",
                    "No GPU here: each rank is a process on the CPU.",
                ),
                "batch_size": ("Batch per rank", "Samples each rank works through in one step."),
            }
            return on_cpu.get(name, (setting.label, setting.help))
        if name == "nproc_per_node":
            return f"GPUs (up to {self._machine.num_gpus})", "One process trains on each."
        return setting.label, setting.help

    def _choices(self, setting: Setting) -> list[tuple[str, str]]:
        if setting.catalog == "models":
            return self.model_choices(str(self._defaults["dataset"]))
        if setting.catalog == "datasets":
            return [(dataset.label, dataset.name) for dataset in self._catalogue.datasets.values()]
        if setting.catalog == "strategies":
            return [(label, strategy) for strategy, label in self._catalogue.strategies.items()]
        return [(choice, choice) for choice in setting.choices]
