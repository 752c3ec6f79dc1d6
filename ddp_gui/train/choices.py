"""Choices of the form that depend on other choices, and on the data sets that can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ddp_gui.auth.current_user import current_user
from ddp_gui.gradio_routes.endpoints import as_current_user
from ddp_gui.plan.catalogue import CatalogueSource
from ddp_gui.train import fill_in, presets, words
from ddp_gui.train.form import FINE_TUNING_FIELDS, Form

# The share of the run that is offered as warm-up when the rate is scaled up.
OFFERED_WARM_UP = 0.05
# Not queued and without Gradio's veil: each takes milliseconds and must not flicker.
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

# For what follows a field's `change` beside the preview. When Gradio has put a call off, it later repeats
# everything that follows the event: two that put calls off would set each other going for ever.
BESIDE_PREVIEW: dict[str, Any] = {**QUIET, "trigger_mode": "multiple"}


@dataclass
class Choices:
    """What follows when a hand picks a data set, a model, or another field that decides on others."""

    form: Form
    source: CatalogueSource

    # Layout

    def add_dataset_and_model(self) -> None:
        """Lay out the choice of data set and model."""
        with gr.Group(), gr.Row():
            self.form.add_controls("dataset", "model")
        self._dataset_groups = gr.HTML(words.dataset_groups(self.form), elem_classes="ddp-nowhere")

    def add_fine_tuning(self) -> None:
        """Lay out what shows only with a model that starts from pretrained weights."""
        with gr.Group(visible=False) as self._fine_tuning, gr.Row():
            self.form.add_controls(*FINE_TUNING_FIELDS)

    def add_more_data(self) -> None:
        """Lay out the data sets whose package is missing, if there are any."""
        if not self.form.catalogue.unavailable:
            return
        with gr.Accordion("More data sets", open=False, elem_classes="ddp-fold"):
            more_data = gr.HTML(elem_id="more-data")
            installed = gr.Button("Installed", elem_id="data-installed", elem_classes="ddp-nowhere")
        # What was installed meanwhile is offered when the page is opened, and after an installation.
        outputs = [self.form.controls["dataset"], self._dataset_groups, more_data]
        offer = as_current_user(self._offer_data)
        gr.on(None, offer, None, outputs, **QUIET)
        installed.click(offer, None, outputs, **QUIET)

    # Events

    def connect(self, choose_own_data: gr.Button) -> None:
        """Connect the controls; all of the form's must be laid out.

        Args:
            choose_own_data: chooses a person's own data, as a hand does in the list of data sets.
        """
        fields = self.form.controls
        dataset, model = fields["dataset"], fields["model"]
        everything = list(fields.values())
        fitted = [model, *(fields[name] for name in presets.FITTED_FIELDS)]
        model.change(self._show_fine_tuning, model, self._fine_tuning, **BESIDE_PREVIEW)
        # What is filled in fits together already: only what a hand picks brings other values with it.
        self.fit_model_after(dataset.input(self._fit_dataset, everything, fitted, **QUIET).then)
        choose_own_data.click(self._choose_own_data, everything, [dataset, *fitted], **QUIET)
        self.fit_model_after(model.input)
        for other, names in self.form.depending().items():
            shown = [fields[name] for name in names]
            show = partial(self.form.shown_if_meant, other)
            fields[other].change(show, fields[other], shown, **BESIDE_PREVIEW)
        fields["scale_lr"].input(
            _offer_warm_up,
            [fields["scale_lr"], fields["warmup_steps"], fields["warmup_ratio"]],
            fields["warmup_ratio"],
            **QUIET,
        )

    def fit_model_after(self, event: Callable[..., Any]) -> Any:
        """Offer what fits the model after an event, such as `model.input`; return the new event."""
        fields = self.form.controls
        outputs = [fields["model_size"], fields["strategy"]]
        return event(self._fit_model, [fields["model"], fields["dataset"], *outputs], outputs, **QUIET)

    def _fit_dataset(self, *values: Any) -> list[Any]:
        raw = self.form.to_raw(*values)
        choices = self.form.model_choices(raw["dataset"])
        names = [name for _, name in choices]
        fitting = raw["model"] if raw["model"] in names else names[0] if names else None
        filled = fill_in.without_preset(self.form, raw)
        return [
            gr.update(choices=choices, value=fitting),
            *(
                gr.update(value=self.form.shown(name, filled[name])) if name in filled else gr.skip()
                for name in presets.FITTED_FIELDS
            ),
        ]

    def _fit_model(self, model: str, dataset: str, size: str, strategy: str) -> tuple[Any, Any]:
        sizes, strategies = self.form.size_choices(model, dataset), self.form.strategy_choices(model)
        is_size = size in [name for _, name in sizes]
        is_strategy = strategy in [name for _, name in strategies]
        return (
            gr.update(choices=sizes, value=size if is_size else ""),
            gr.update(choices=strategies, value=strategy if is_strategy else strategies[0][1]),
        )

    def _choose_own_data(self, *values: Any) -> list[Any]:
        own = next(iter(self.form.catalogue.own_data))
        changed = [
            own if name == "dataset" else value for name, value in zip(self.form.names, values, strict=True)
        ]
        return [gr.update(value=own), *self._fit_dataset(*changed)]

    def _offer_data(self) -> tuple[Any, str, str]:
        catalogue = self.form.catalogue = self.source.get()
        return (
            gr.update(choices=self.form.dataset_choices()),
            words.dataset_groups(self.form),
            words.unavailable(catalogue, may_install=current_user().is_teacher),
        )

    def _show_fine_tuning(self, model: str) -> Any:
        picked = self.form.catalogue.models.get(model)
        return gr.update(visible=bool(picked and picked.may_have_path))


def _offer_warm_up(is_on: bool, steps: Any, ratio: Any) -> Any:
    return f"{OFFERED_WARM_UP:g}" if is_on and _is_zero(steps) and _is_zero(ratio) else gr.skip()


def _is_zero(value: Any) -> bool:
    try:
        return float(value or 0) == 0
    except (TypeError, ValueError):
        return False
