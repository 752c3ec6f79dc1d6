"""Where a run trains, on an engine that has more than one place: partition, machines, GPUs, time, account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from ddp_gui.devices.capacity import Machine
from ddp_gui.train.api import Api
from ddp_gui.train.choices import BESIDE_PREVIEW, QUIET
from ddp_gui.train.form import FOLDED_WHERE, Form
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError
from trainers.engines.base import Engine
from trainers.engines.reports import Choice

ROWS = (("partition",), ("num_nodes", "gpu_type"), ("time_limit", "memory_gb"))
# These decide on what a place has for a run.
DECIDING = ("partition", "num_nodes", "gpu_type", "device")


class WhereGroup:
    """The fields that an engine asks for, and what follows when one of them is chosen."""

    def __init__(self, form: Form, api: Api, engine: Engine) -> None:
        self._form, self._api, self._engine = form, api, engine
        self._asked = engine.asks()

    def add_controls(self) -> None:
        """Lay out the fields; none where the engine has one place only."""
        if not self._asked:
            return
        gr.HTML('<h2 class="ddp-folds-title">Where</h2>')
        with gr.Group(elem_id="where"):
            for row in ROWS:
                with gr.Row():
                    self._form.add_controls(*(name for name in row if name in self._asked))
        folded = [name for name in FOLDED_WHERE if name in self._asked]
        if folded:
            with (
                gr.Group(elem_classes="ddp-folds"),
                gr.Accordion(_title(folded), open=False, elem_classes="ddp-fold", elem_id="fold-where"),
            ):
                with gr.Row():
                    self._form.add_controls(*(name for name in folded if name != "extra_lines"))
                self._form.add_controls(*(name for name in folded if name == "extra_lines"))

    def connect(self, demo: gr.Blocks) -> None:
        """Connect the controls; all of the form's must be laid out.

        Args:
            demo: the Blocks they are laid out in.
        """
        if not self._asked:
            return
        fields = self._form.controls
        everything = list(fields.values())
        adapted = [fields[name] for name in self._adapted()]
        deciding = [fields[name] for name in DECIDING if name in fields]
        changed = [demo.load, *(field.change for field in deciding)]
        gr.on(changed, self._adapt, everything, adapted, **BESIDE_PREVIEW)
        # Only a hand that picks a smaller place takes ranks away.
        ranks = fields["nproc_per_node"]
        gr.on([field.input for field in deciding], self._fit_ranks, everything, ranks, **QUIET)

    def _adapted(self) -> list[str]:
        return [
            name
            for name in ("partition", "gpu_type", "num_nodes", "nproc_per_node")
            if name in self._form.controls
        ]

    def _adapt(self, *values: Any) -> list[Any]:
        """Say what can be chosen now: what is free, the types of GPUs, the most machines and ranks."""
        config = self._config(values)
        if config is None:
            return [gr.skip() for _ in self._adapted()]
        here, choices = self._api.machine(config), self._engine.choices(config)
        return [self._update(name, here, choices) for name in self._adapted()]

    def _update(self, name: str, here: Machine, choices: Mapping[str, tuple[Choice, ...]]) -> Any:
        if name == "nproc_per_node":
            label, info = self._form.words_of_ranks(here)
            return gr.update(label=label, info=info)
        if name == "num_nodes":
            most = f"Up to {here.num_nodes} nodes" if here.num_nodes > 1 else "1 node"
            return gr.update(info=f"{most} of the partition, each with as many ranks.")
        offered = [(choice.words, choice.value) for choice in choices[name]]
        if name == "gpu_type":
            # One type is no choice: the first stands for whichever.
            info = "Which kind each rank trains on."
            return gr.update(choices=offered, info=info, visible=len(offered) > 2 or "hidden")
        return gr.update(choices=offered, info="Nodes that the job may run on, and what is free of them now.")

    def _fit_ranks(self, *values: Any) -> Any:
        config = self._config(values)
        if config is None:
            return gr.skip()
        most = self._api.machine(config).max_ranks(config.device)
        return most if 0 < most < config.nproc_per_node else gr.skip()

    def _config(self, values: tuple[Any, ...]) -> Config | None:
        """Return what is chosen, as far as it is known to mean something."""
        raw = self._form.to_raw(*values)
        names = {*DECIDING, "nproc_per_node"}
        try:
            return config_module.parse({name: value for name, value in raw.items() if name in names})
        except ConfigError:
            return None


def _title(names: list[str]) -> str:
    first, *others = (config_module.settings()[name].label for name in names)
    return ", ".join([first, *(label if label.isupper() else label.lower() for label in others)])
