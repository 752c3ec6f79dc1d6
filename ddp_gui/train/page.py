"""The Train page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gradio as gr
from gradio.themes.utils.sizes import Size

from ddp_gui.devices.capacity import Machine
from ddp_gui.gradio_routes.uploads import Uploads
from ddp_gui.http import shell
from ddp_gui.http.shell import visible
from ddp_gui.launch import launcher
from ddp_gui.operations import USER_ERRORS, as_current_user, error_text, make_escaped_error
from ddp_gui.plan.catalogue import CatalogueSource
from ddp_gui.plan.memory import Prediction, faster_precision, warnings_before_start
from ddp_gui.plan.plan import Plan
from ddp_gui.runs.runs import RunStore
from ddp_gui.train import choices, fill_in, own_data
from ddp_gui.train import form as form_module
from ddp_gui.train.api import Api
from ddp_gui.train.choices import BESIDE_PREVIEW, QUIET, Choices, WhereGroup
from ddp_gui.train.form import FOLD_GROUPS, Form
from ddp_gui.train.starts import NotInheritedError
from trainers.contract.config import Config, ConfigError
from trainers.engines.base import Engine
from trainers.machine.os_errors import explain

# Text sizes relative to the page's, so that all text grows on a very large screen.
_TEXT = Size("0.7rem", "0.75rem", "0.85rem", "0.94rem", "1rem", "1.35rem", "1.6rem", name="text_ddp")
# Identical in light and dark mode, because the CSS variables change.
_VARIABLES = {
    "body_background_fill": "ground",
    "body_text_color": "text",
    "body_text_color_subdued": "soft",
    "background_fill_primary": "card",
    "background_fill_secondary": "sunk",
    "block_background_fill": "card",
    "block_border_color": "line",
    "block_info_text_color": "soft",
    "block_label_background_fill": "sunk",
    "block_label_border_color": "line",
    "block_label_text_color": "soft",
    "block_title_text_color": "text",
    "border_color_accent": "blue",
    "border_color_accent_subdued": "blue",
    "border_color_primary": "line",
    "button_primary_background_fill": "blue",
    "button_primary_background_fill_hover": "blue",
    "button_primary_border_color": "blue",
    "button_primary_border_color_hover": "blue",
    "button_primary_text_color": "on-blue",
    "button_secondary_background_fill": "card",
    "button_secondary_background_fill_hover": "sunk",
    "button_secondary_border_color": "line",
    "button_secondary_border_color_hover": "soft",
    "button_secondary_text_color": "text",
    "checkbox_background_color": "field",
    "checkbox_background_color_selected": "blue",
    "checkbox_border_color": "field-line",
    "checkbox_border_color_focus": "focus",
    "checkbox_border_color_hover": "soft",
    "checkbox_border_color_selected": "blue",
    "checkbox_label_background_fill": "card",
    "checkbox_label_background_fill_hover": "sunk",
    "code_background_fill": "sunk",
    "color_accent_soft": "sunk",
    "error_background_fill": "red-ground",
    "error_border_color": "red",
    "error_icon_color": "red",
    "error_text_color": "text",
    "input_background_fill": "field",
    "input_border_color": "field-line",
    "input_border_color_focus": "focus",
    "input_border_color_hover": "soft",
    "input_placeholder_color": "soft",
    "link_text_color": "blue",
    "link_text_color_active": "blue",
    "link_text_color_hover": "blue",
    "link_text_color_visited": "blue",
    "panel_background_fill": "sunk",
    "panel_border_color": "line",
    "table_border_color": "line",
    "table_even_background_fill": "card",
    "table_odd_background_fill": "sunk",
}
# Gradio has only one value of these for both modes.
_BOTH_MODES = {
    "block_radius": "radius",
    "button_large_radius": "radius-small",
    "button_medium_radius": "radius-small",
    "button_small_radius": "radius-small",
    "color_accent": "blue",
    "container_radius": "radius",
    "embed_radius": "radius",
    "input_radius": "radius-small",
    "table_radius": "radius",
}


def make_theme() -> gr.themes.Base:
    """Return the theme of the Train page; it loads nothing from other servers."""
    theme = gr.themes.Default(text_size=_TEXT, font=["var(--ddp-sans)"], font_mono=["var(--ddp-mono)"])
    values = {name: f"var(--ddp-{token})" for name, token in (_VARIABLES | _BOTH_MODES).items()}
    dark = {f"{name}_dark": values[name] for name in _VARIABLES}
    return theme.set(layout_gap="var(--ddp-gap)", button_border_width="1px", **values, **dark)


HERO = f"""<header class="ddp-hero" id="{shell.FORM}" tabindex="-1">
<h1>Train a network on several GPUs at once</h1>
<p>Pick a model and data, press Start, and watch every process of a real <code>torchrun</code> job.</p>
<p class="ddp-ways"><strong aria-current="page">Choose a model and data</strong>
<a href="./script">Run my script</a></p>
</header>"""
NO_COMMAND = "# no command yet: see the message above"
FIELDS_A_ROW = 3
# JavaScript that returns the same new value for all events within 20 ms. Filling in the form changes many
# fields at the same time, and Gradio (6.31) calls a handler with "always_last" once per change until the
# first call has been sent.
NEW_VALUE_JS = """() => (window.ddpAnew ??= new Promise((done) => setTimeout(() => {
  window.ddpAnew = undefined;
  done(String(performance.now()));
}, 20)))"""
# JavaScript that returns, after a reload, the values kept by assets/js/train/form.js. A link opens the form
# with defaults.
SAVED_VALUES_JS = """() => {
  const how = performance.getEntriesByType("navigation")[0]?.type;
  const key = "ddp-form" + location.search;
  try {
    if (how === "reload" || how === "back_forward") return sessionStorage.getItem(key) ?? "";
    sessionStorage.removeItem(key);
    return "";
  } catch {
    return "";
  }
}"""
OPEN_RUN_JS = "(run_id) => { if (run_id) window.location.assign('./run?id=' + encodeURIComponent(run_id)); }"
# assets/js/train/form.js sets aria-busy as soon as the button is pressed.
START_IS_FREE_JS = "() => { document.getElementById('start-button').removeAttribute('aria-busy'); }"


def build(
    demo: gr.Blocks,
    api: Api,
    store: RunStore,
    uploads: Uploads,
    source: CatalogueSource,
    machine: Machine,
    engine: Engine,
) -> None:
    """Lay out the page inside the Blocks under construction."""
    TrainPage(demo, api, store, uploads, source, machine, engine)


@dataclass
class TrainPage:
    """The form, its preview, and the events of its controls."""

    demo: gr.Blocks
    api: Api
    store: RunStore
    uploads: Uploads
    source: CatalogueSource
    machine: Machine
    engine: Engine
    form: Form = field(init=False)

    def __post_init__(self) -> None:
        gr.HTML(shell.navigation(""), elem_classes="ddp-nav-place")
        gr.HTML(HERO)
        gr.HTML('<div id="ddp-live"></div>')
        self._fill_problem = _problem_box("The form could not be filled in")
        self.form = Form(self.source.get(), self.machine, self.machine.placement_fields)
        self._where_group = WhereGroup(self.form, self.api, self.machine.placement_fields)
        self.preset_buttons = self._add_presets()
        self._changes = gr.HTML(elem_id="changes")
        with gr.Row(equal_height=False):
            with gr.Column(scale=5, min_width=320):
                self._add_form()
            with gr.Column(scale=4, min_width=320, elem_id="what-start-does"):
                self._add_summary()
        self._started_run = gr.Textbox(visible=False)
        self._preview_trigger = gr.Textbox(visible=False)  # a change updates the preview
        self._filled_from = gr.Textbox(visible=False)  # id of the run that filled in the form
        self._saved_values = gr.Textbox(visible=False)  # receives the result of SAVED_VALUES_JS
        self._preview_for_user = as_current_user(self._preview)
        self._controls = [self.form.controls[name] for name in self.form.names]
        self._preview_inputs = [self._filled_from, *self._controls]
        self._choices.connect(self._own_data.choose)
        self._where_group.connect(self.demo)
        self._connect_own_data()
        self._connect_preview()
        self._connect_filling()
        self._connect_start()

    # Layout

    def _add_presets(self) -> list[tuple[str, gr.Button]]:
        with gr.Row(elem_classes="ddp-presets"):
            return [
                (
                    preset.name,
                    gr.Button(
                        f"{preset.title}\n{preset.description}",
                        elem_classes="ddp-preset",
                        elem_id=f"preset-{preset.name}",
                    ),
                )
                for preset in form_module.PRESETS
            ]

    def _add_form(self) -> None:
        form = self.form
        self._choices = Choices(form, self.source, self.api.recipe)
        self._choices.add_dataset_and_model()
        self._own_data = own_data.OwnDataSection(form)
        self._choices.add_fine_tuning()
        self._description = gr.Markdown(elem_classes="ddp-note")
        self._where_group.add_controls()
        with gr.Group(elem_id="main-fields"):
            with gr.Row():
                if self.machine.num_nodes > 1 and "num_nodes" not in form.controls:
                    form.add_controls("num_nodes")
                form.add_controls("nproc_per_node", "batch_size")
            with gr.Row():
                form.add_controls("learning_rate", "num_epochs")
        for group, topics in FOLD_GROUPS.items():
            gr.HTML(f'<h2 class="ddp-folds-title">{group}</h2>')
            with gr.Group(elem_classes="ddp-folds"):
                for topic, title in topics.items():
                    _add_topic(form, topic, title)
        self._choices.add_more_data()

    def _add_summary(self) -> None:
        self._start = gr.Button("Start", variant="primary", size="lg", elem_id="start-button")
        # Unless this box is checked, the run waits while another program uses a GPU.
        self._share = gr.Checkbox(
            label="Also use GPUs that other programs are using",
            visible=self.machine.num_gpus > 0 and self.engine.is_this_machine,
            elem_id="share-gpus",
        )
        self._machine_text = gr.HTML(choices.machine(self.machine), elem_id="machine-words")
        self._equation = gr.HTML(elem_id="equation")
        self._warnings = gr.HTML(elem_id="warnings")
        self._memory = gr.HTML(elem_id="memory")
        self._problem = gr.HTML(elem_id="problems")
        self._command = gr.Code(
            label="This job as a command",
            language="shell",
            interactive=False,
            lines=2,
            max_lines=4,
            show_line_numbers=False,
            elem_id="command",
            elem_classes="ddp-command",
            wrap_lines=True,
        )
        with gr.Accordion(
            "This job as a script",
            open=False,
            visible=bool(choices.script(Config(), self.store.runs_dir, self.engine)),
            elem_classes="ddp-fold",
            elem_id="fold-script",
        ):
            self._script = gr.Code(
                show_label=False,
                language="shell",
                interactive=False,
                show_line_numbers=False,
                elem_id="script",
                elem_classes="ddp-command",
                wrap_lines=True,
            )
        self._code_settings = gr.HTML(elem_id="code-settings")
        with gr.Accordion("As code", open=False, elem_classes="ddp-fold", elem_id="fold-code"):
            gr.HTML('<div id="ddp-form-code" class="ddp"></div>')
        for error in self.form.catalogue.errors:
            gr.Textbox(
                value=f"{error['module']} cannot be used: {error['message']}",
                label="A plug-in that failed to load",
                show_label=False,
                interactive=False,
                elem_classes="ddp-problem",
            )

    # Preview

    def _preview(self, filled_from: str, *values: Any) -> tuple[Any, ...]:
        raw = self.form.to_raw(*values)
        defaults = fill_in.defaults_for(self.form, self.api.recipe, raw)
        changed = fill_in.changes_html(
            self.form, self.form.catalogue, raw, self._run_values(filled_from), defaults=defaults
        )
        try:
            planned = self.api.plan(raw)
        # some fields are not filled in yet; filling them in triggers another preview
        except NotInheritedError:
            return (gr.skip(),) * len(self._preview_outputs)
        except ConfigError as error:
            problems = own_data.start_button_text(error, self.form) or fill_in.problem_html(error, self.form)
            description = choices.pick(self.form.catalogue, raw)
            code = choices.code_settings(None)
            start_note = choices.start_note(raw[form_module.START_FIELD], None)
            return (
                gr.skip(),
                "",
                "",
                "",
                problems,
                NO_COMMAND,
                NO_COMMAND,
                code,
                description,
                changed,
                start_note,
            )
        self.engine.preparation.expect(planned.config.world_size)
        machine = self.api.machine(planned.config)
        return (
            choices.machine(machine),
            choices.equation(planned) + choices.expectation(planned),
            choices.warnings(warnings_before_start(planned, machine)),
            choices.memory(planned, machine, self._predict_memory(planned)),
            "",
            launcher.train_command(self.engine, planned.config, self.store.runs_dir),
            choices.script(planned.config, self.store.runs_dir, self.engine),
            choices.code_settings(planned),
            choices.pick(
                self.form.catalogue, raw, planned.num_parameters, faster_precision(planned, machine)
            ),
            changed,
            choices.start_note(raw[form_module.START_FIELD], planned),
        )

    def _run_values(self, run_id: str) -> tuple[str, dict[str, Any]] | None:
        """Return name and configuration of the run that filled in the form; None if it was deleted."""
        try:
            config = self.store.open(run_id).read_config() if run_id else None
        except (OSError, ValueError):
            return None
        return None if config is None else (config.name or run_id, config.to_json())

    def _predict_memory(self, planned: Plan) -> Prediction | None:
        catalogue = self.form.catalogue
        if planned.dataset.name in catalogue.own_data:
            if planned.num_parameters is None:
                return None  # the size of a pretrained model depends on its folder
            counts = {planned.model.name: {planned.size.name: planned.num_parameters}}
            catalogue = catalogue.with_dataset(planned.dataset, counts)
        is_on_gpu = planned.device_kind == "cuda"
        return self.store.predicted_memory(planned.config, catalogue, is_on_gpu=is_on_gpu)

    @property
    def _preview_outputs(self) -> list[Any]:
        """Outputs of `_preview`."""
        return [
            self._machine_text,
            self._equation,
            self._warnings,
            self._memory,
            self._problem,
            self._command,
            self._script,
            self._code_settings,
            self._description,
            self._changes,
            self._choices.start_note,
        ]

    def _connect_preview(self) -> None:
        # Only `_preview_trigger` starts a preview, so that only one runs at a time: of two concurrent
        # results, the older could arrive last. A change of `_filled_from` starts an inspection, which then
        # changes `_preview_trigger`.
        change_events = [self.demo.load, *(control.change for control in self._controls)]
        gr.on(change_events, None, None, self._preview_trigger, js=NEW_VALUE_JS, **BESIDE_PREVIEW)
        self._preview_trigger.change(
            self._preview_for_user,
            self._preview_inputs,
            self._preview_outputs,
            trigger_mode="always_last",
            **QUIET,
        )

    def _connect_own_data(self) -> None:
        for inspected in self._own_data.connect(
            self.api, self.uploads, self._controls, self._filled_from, self._choices.filled
        ):
            fitted = self._choices.fit_model_after(inspected.then)
            fitted.then(None, None, self._preview_trigger, js=NEW_VALUE_JS, **QUIET)

    # Filling in the form, and Start

    def _connect_filling(self) -> None:
        for name, button in self.preset_buttons:
            button.click(
                partial(self._fill_from_preset, name),
                None,
                [self._choices.filled, *self._preview_inputs],
                **QUIET,
            )
        outputs = [self._fill_problem, self._choices.filled, *self._preview_inputs]
        self.demo.load(
            as_current_user(self._fill_at_load), self._saved_values, outputs, js=SAVED_VALUES_JS, **QUIET
        )

    def _fill_from_preset(self, name: str) -> list[Any]:
        self._refresh_ranks()
        values = dict(form_module.find_preset(name).values)
        fitting = {}
        if values.keys() <= form_module.WHAT_IS_TRAINED:
            fitting = self.api.recipe(fill_in.without_rules(self.form.unset_values()) | values)
        filled = json.dumps(fitting) if fitting else ""
        return [filled, "", *fill_in.updates(self.form, values | fitting)]

    def _fill_at_load(self, saved_values: str, request: gr.Request) -> list[Any]:
        query = dict(request.query_params)
        ranks = self._refresh_ranks()
        if (values := fill_in.parse_saved_values(self.form, saved_values)) is not None:
            filled = fill_in.filled_by_rules(self.form, self.api.recipe, values)
            return [gr.skip(), filled, query.get("from", ""), *fill_in.updates(self.form, values)]
        no_updates = [gr.skip()] * (1 + len(self._preview_inputs))
        no_updates[2 + self.form.names.index("nproc_per_node")] = ranks
        if "from" not in query:
            return [gr.skip(), *no_updates]
        try:
            values = self.api.starts.complete(fill_in.read_run_config(self.store, query))
            filled = fill_in.filled_by_rules(self.form, self.api.recipe, values)
            return [gr.skip(), filled, query["from"], *fill_in.updates(self.form, values)]
        except (ValueError, OSError) as error:
            message = f"The form could not be filled in from that run: {visible(explain(error))}"
            return [gr.update(value=message, visible=True), *no_updates]

    def _refresh_ranks(self) -> Any:
        """Return an update of the number of ranks, because the number of free GPUs changes over time."""
        if not self.machine.num_gpus or not self.engine.is_this_machine:
            return gr.skip()
        return gr.update(**self.form.refresh_ranks(self.api.machine()))

    async def _press_start(self, shares_gpus: bool, *values: Any) -> str:
        try:
            started = await self.api.start_run(self.form.to_raw(*values), use_occupied_gpus=shares_gpus)
            return str(started["run_id"])
        except ConfigError as error:
            raise make_escaped_error(fill_in.problem_text(error, self.form)) from error
        except USER_ERRORS as error:
            raise make_escaped_error(error_text(error)) from error

    def _connect_start(self) -> None:
        # Unlike the others, this event is queued, because Gradio displays errors only of queued events.
        started = self._start.click(
            as_current_user(self._press_start),
            [self._share, *self._controls],
            self._started_run,
            trigger_mode="once",
            concurrency_limit=None,
            show_progress="hidden",
            api_visibility="private",
        )
        # Update the preview: a refused start may have inspected the user's own data.
        started.failure(None, None, self._preview_trigger, js=NEW_VALUE_JS, **QUIET)
        started.failure(None, js=START_IS_FREE_JS, **QUIET)
        started.success(None, self._started_run, None, js=OPEN_RUN_JS)


def _problem_box(label: str) -> gr.Textbox:
    """Lay out a box for an error message; it is hidden without a message."""
    return gr.Textbox(
        visible=False, interactive=False, label=label, show_label=False, lines=2, elem_classes="ddp-problem"
    )


def _add_topic(form: Form, topic: str, title: str) -> None:
    """Lay out a topic's fields in a closed accordion, `FIELDS_A_ROW` per row."""
    names = form.fields_of_topic(topic)
    with gr.Accordion(title, open=False, elem_classes="ddp-fold", elem_id=f"fold-{topic}"):
        for first in range(0, len(names), FIELDS_A_ROW):
            with gr.Row():
                form.add_controls(*names[first : first + FIELDS_A_ROW])
        if topic == "forward":
            box = gr.HTML(choices.trackers(), elem_id="trackers")
            # at each load, because a tracker may have been installed
            gr.on(None, choices.trackers, None, box, **QUIET)
