"""Choices of the form that depend on other choices, and on the data sets that can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ddp_gui.auth.current_user import current_user
from ddp_gui.gradio_routes.endpoints import as_current_user
from ddp_gui.plan import recipe
from ddp_gui.plan.catalogue import CatalogueSource
from ddp_gui.train import fill_in, presets, words
from ddp_gui.train.form import FINE_TUNING_FIELDS, Form

# The share of the run that is offered as warm-up when the rate is scaled up.
OFFERED_WARM_UP = 0.05
# Not queued and without Gradio's veil: each takes milliseconds and must not flicker.
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

FITTED_FIELDS = tuple(sorted({*presets.FITTED_FIELDS, *recipe.FIELDS}))

# For what follows a field's `change` beside the preview. When Gradio has put a call off, it later repeats
# everything that follows the event: two that put calls off would set each other going for ever.
BESIDE_PREVIEW: dict[str, Any] = {**QUIET, "trigger_mode": "multiple"}


@dataclass
class Choices:
    """What follows when a hand picks a data set, a model, or another field that decides on others."""

    form: Form
    source: CatalogueSource
    rules: fill_in.Rules

    # Layout

    def add_dataset_and_model(self) -> None:
        """Lay out the choice of data set and model."""
        with gr.Group(), gr.Row():
            self.form.add_controls("dataset", "model")
        # What the rules have filled in (`fill_in.by_rules`): a field that differs was changed by a person.
        self.filled = gr.Textbox(visible=False)
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
        inputs = [self.filled, *everything]
        fitted = [self.filled, *(fields[name] for name in FITTED_FIELDS)]
        of_model = [fields["model_size"], fields["strategy"]]
        model.change(self._show_fine_tuning, model, self._fine_tuning, **BESIDE_PREVIEW)
        # What is filled in fits together already: only what a hand picks brings other values with it.
        self.fit_model_after(
            dataset.input(as_current_user(self._fit_dataset), inputs, [model, *fitted], **QUIET).then
        )
        choose_own_data.click(
            as_current_user(self._choose_own_data), inputs, [dataset, model, *fitted], **QUIET
        )
        model.input(as_current_user(self._pick_model), inputs, [*of_model, *fitted], **QUIET)
        deciding = [fields[name] for name in ("nproc_per_node", "num_nodes", "strategy") if name in fields]
        gr.on([each.input for each in deciding], as_current_user(self._fit_ranks), inputs, fitted, **QUIET)
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

    def _fit_dataset(self, filled: str, *values: Any) -> list[Any]:
        raw = self.form.to_raw(*values)
        choices = self.form.model_choices(raw["dataset"])
        names = [name for _, name in choices]
        fitting = raw["model"] if raw["model"] in names else names[0] if names else None
        strategies = [name for _, name in self.form.strategy_choices(str(fitting))]
        if raw["strategy"] not in strategies:
            raw["strategy"] = strategies[0]
        return [
            gr.update(choices=choices, value=fitting),
            *self._filled_in(filled, raw | {"model": fitting}, leaves_preset=True),
        ]

    def _pick_model(self, filled: str, *values: Any) -> list[Any]:
        raw = self.form.to_raw(*values)
        of_model = self._fit_model(raw["model"], raw["dataset"], raw["model_size"], raw["strategy"])
        raw["strategy"] = of_model[1]["value"]
        return [*of_model, *self._filled_in(filled, raw, leaves_preset=True)]

    def _fit_ranks(self, filled: str, *values: Any) -> list[Any]:
        return self._filled_in(filled, self.form.to_raw(*values), leaves_preset=False)

    def _filled_in(self, filled: str, raw: dict[str, Any], *, leaves_preset: bool) -> list[Any]:
        changes, filled = fill_in.by_rules(self.form, self.rules, filled, raw, leaves_preset=leaves_preset)
        return [filled, *fill_in.updates_of(self.form, FITTED_FIELDS, changes)]

    def _fit_model(self, model: str, dataset: str, size: str, strategy: str) -> tuple[Any, Any]:
        sizes, strategies = self.form.size_choices(model, dataset), self.form.strategy_choices(model)
        is_size = size in [name for _, name in sizes]
        is_strategy = strategy in [name for _, name in strategies]
        return (
            gr.update(choices=sizes, value=size if is_size else ""),
            gr.update(choices=strategies, value=strategy if is_strategy else strategies[0][1]),
        )

    def _choose_own_data(self, filled: str, *values: Any) -> list[Any]:
        own = next(iter(self.form.catalogue.own_data))
        changed = [
            own if name == "dataset" else value for name, value in zip(self.form.names, values, strict=True)
        ]
        return [gr.update(value=own), *self._fit_dataset(filled, *changed)]

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
