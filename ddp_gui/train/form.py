"""The form: presets, groups of fields and their controls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan.catalogue import Catalogue
from trainers.contract import config as config_module
from trainers.contract.config import Setting
from trainers.contract.config import options as options_module
from trainers.contract.config.sections import NO_MISTAKE
from trainers.engines.base import PlacementField


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A predefined configuration with title and description; the form opens with the first preset."""

    name: str
    title: str
    description: str
    values: Mapping[str, Any]


PRESETS = (
    Preset(
        name="fashion",
        title="Fashion-MNIST, a first run",
        description="A small network learns to classify clothes. See which images it gets wrong.",
        # Takes about 110 CPU seconds. Random crops and weight decay prevent overfitting to the 8,000 images.
        values={
            "dataset": "fashion_mnist",
            "model": "cnn",
            "num_epochs": 56,
            "random_crop": 2,
            "weight_decay": 0.1,
        },
    ),
    Preset(
        name="austen",
        title="Write like Jane Austen",
        description="A GPT learns English letter by letter. Every ten seconds it writes a sample.",
        values={"dataset": "austen", "model": "gpt"},
    ),
    Preset(
        name="moons",
        title="Two moons, watch the boundary",
        description="The plane is coloured by the predicted class. Watch the decision boundary bend.",
        values={
            "dataset": "moons",
            "model": "tabular_mlp",
            "batch_size": 16,
            "learning_rate": 0.0003,
            "num_epochs": 600,
            "eval_every_steps": 500,
            "checkpoint_every_steps": 5000,
        },
    ),
    Preset(
        name="scaling",
        title="How much do more GPUs help?",
        description="Train 300 steps of a network that keeps the cores busy, then again with fewer or more "
        "ranks. Select both runs under Runs and compare them.",
        values={
            "dataset": "fashion_mnist",
            "model": "resnet",
            "model_size": "slim",
            "max_steps": 300,
            "eval_every_steps": 150,
            "checkpoint_every_steps": 300,
        },
    ),
)


# The other fields of a preset are tuned for its data set and model.
WHAT_IS_TRAINED = frozenset({"dataset", "model", "model_size"})
FITTED_FIELDS = tuple(
    sorted({name for preset in PRESETS for name in preset.values if name not in WHAT_IS_TRAINED})
)


def find_preset(name: str) -> Preset:
    """Return the preset of this name."""
    return next(preset for preset in PRESETS if preset.name == name)


Control = gr.Dropdown | gr.Checkbox | gr.CheckboxGroup | gr.Number | gr.Textbox

FOLD_GROUPS = {
    "Data and model": {"data": "Data", "model": "The model"},
    "Training": {
        "optimizer": "Optimizer and schedule",
        "schedule": "Duration, evaluation, checkpoints",
        "forward": "Forward to a tracker",
    },
    "Ranks and machine": {
        "parallel": "Parallelism",
        "speed": "Speed",
        "reproduce": "Name, device, reproducibility",
    },
    "For teaching": {"teaching": "A mistake on purpose, replicas compared"},
}
TOPIC_TITLES = {topic: title for topics in FOLD_GROUPS.values() for topic, title in topics.items()}
# Group of a data set by its task.
DATASET_GROUPS = {
    "image_classification": "Images",
    "text_classification": "Texts",
    "language_modelling": "Texts",
    "tabular_classification": "Tables",
    "tabular_regression": "Tables",
}
OTHER_DATASETS = "Others"
_SEPARATORS = re.compile(r"[\s_'’]")  # includes thin and no-break spaces
_GROUPS = re.compile(r"[+-]?\d{1,3}([.,])\d{3}(\1\d{3})*")
_ENGLISH = re.compile(r"[+-]?\d{1,3}(,\d{3})+\.\d+")
_CONTINENTAL = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+")
# Fields that have a separate section on the page.
OWN_DATA_FIELDS = (
    "data_path", "label_column", "data_task", "skip_unreadable", "images_path", "data_reading",
)  # fmt: skip
FOLDED_WHERE = ("account", "qos", "extra_lines")
FINE_TUNING_FIELDS = ("pretrained_path", "lora_rank", "hub_offline")
START_FIELD = "start_from"
# Fields of the model, which a run that starts from another run's weights inherits.
FIXED_BY_START = ("model", "model_size", "pretrained_path", "lora_rank")


class Form:
    """The controls of the fields, in layout order.

    Attributes:
        catalogue: available data sets and models; replaced after a data set was installed.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        machine: Machine,
        engine_fields: Mapping[str, PlacementField] | None = None,
    ) -> None:
        self.catalogue = catalogue
        self._machine = machine
        # Fields by which the engine selects where a run trains.
        self._engine_fields = dict(engine_fields or {})
        self._own_options = catalogue.own_options()
        self._unset = (
            config_module.default_values()
            | {name: option.default for name, option in self._own_options.items()}
            | {"nproc_per_node": machine.default_ranks()}
            | {
                name: field.default
                for name, field in self._engine_fields.items()
                if field.default is not None
            }
        )
        self._defaults = self._unset | dict(PRESETS[0].values)
        self.controls: dict[str, Control] = {}
        self._typed_numbers: dict[str, bool] = {}  # numbers entered as text; True for whole numbers

    def add_controls(self, *names: str) -> None:
        """Create the controls of these fields at the current position of the layout."""
        settings = config_module.settings()
        for name in names:
            option = self._own_options.get(name)
            self.controls[name] = self._control(name, option.setting if option else settings[name])

    def fields_of_topic(self, topic: str) -> list[str]:
        """Return the fields of a topic that have no separate section on the page."""
        separate_fields = (*OWN_DATA_FIELDS, *FINE_TUNING_FIELDS, START_FIELD)
        names = [
            name
            for name, setting in config_module.settings().items()
            if setting.topic == topic and name not in separate_fields
        ]
        return [*names, *self._own_options] if topic == "parallel" else names

    @property
    def names(self) -> list[str]:
        return list(self.controls)

    def is_own_data(self, raw: Mapping[str, Any]) -> bool:
        """Return True if the configuration uses the user's own data."""
        return raw.get("dataset") in self.catalogue.own_data

    def usual_values(self) -> dict[str, Any]:
        """Return the values with which the form opens, by field: those of the first preset."""
        return dict(self._defaults)

    def unset_values(self) -> dict[str, Any]:
        """Return the values of fields that neither a preset nor the user has set, by field."""
        return dict(self._unset)

    def to_control_value(self, name: str, value: Any) -> Any:
        """Convert a field's value to the value of its control."""
        control = self.controls[name]
        if isinstance(control, gr.CheckboxGroup):
            # Omit lines that the administrator has withdrawn.
            options = [choice for _, choice in control.choices]
            return [line for line in str(value or "").splitlines() if line in options]
        if isinstance(control, gr.Textbox):
            return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        return value

    def to_raw(self, *values: Any) -> dict[str, Any]:
        """Convert the controls' values to a configuration of JSON values."""
        raw = dict(zip(self.names, values, strict=True))
        for name, value in raw.items():
            if isinstance(value, list):
                raw[name] = "\n".join(map(str, value))
        for name, is_whole in self._typed_numbers.items():
            if isinstance(raw.get(name), str):
                raw[name] = as_number(raw[name], is_whole=is_whole)
        for name in self._own_options:
            if not self.catalogue.is_applicable(name, raw):
                del raw[name]
        return raw

    def dependent_fields(self) -> dict[str, list[str]]:
        """Return the fields that are relevant only for some values of another field, by that field."""
        dependent: dict[str, list[str]] = {}
        for name in [*config_module.settings(), *self._own_options]:
            if (only_with := self.catalogue.only_with(name)) is not None:
                dependent.setdefault(only_with[0], []).append(name)
        return dependent

    def show_relevant(self, deciding: str, value: Any) -> Any:
        """Show or hide fields, such as momentum, that depend on the value of another field."""
        # "hidden" rather than False keeps the control and its value in the document.
        updates = [
            gr.update(visible=self.catalogue.is_applicable(name, {deciding: value}) or "hidden")
            for name in self.dependent_fields()[deciding]
        ]
        # with one output, Gradio treats a list as the value
        return updates if len(updates) > 1 else updates[0]

    def dataset_choices(self, like: str = "") -> list[tuple[str, str]]:
        """Return (label, name) of each data set; with `like`, only of the same task, and own data."""
        datasets = self.catalogue.datasets
        return [
            (label, name)
            for label, name, _ in self.grouped_datasets()
            if like not in datasets or name not in datasets or datasets[name].task == datasets[like].task
        ]

    def grouped_datasets(self) -> list[tuple[str, str, str]]:
        """Return (label, name, group) of each data set, sorted by group; own data is last."""
        entries = [
            (dataset.label, dataset.name, DATASET_GROUPS.get(dataset.task, OTHER_DATASETS))
            for dataset in self.catalogue.datasets.values()
        ]
        order = [*dict.fromkeys(DATASET_GROUPS.values()), OTHER_DATASETS]
        entries.sort(key=lambda entry: order.index(entry[2]))
        return entries + [(f"{label}…", name, "Your own") for name, label in self.catalogue.own_data.items()]

    def model_choices(self, dataset: str) -> list[tuple[str, str]]:
        """Return (label, name) of the models that can learn from a data set."""
        return [(model.label, model.name) for model in self.catalogue.models_for(dataset)]

    def model_choices_for_task(self, task: str) -> list[tuple[str, str]]:
        """Return (label, name) of the models for a task."""
        return [(model.label, model.name) for model in self.catalogue.models_for_task(task)]

    def size_choices(self, model_name: str, dataset: str) -> list[tuple[str, str]]:
        """Return (label, name) of a model's sizes, with their number of parameters for this data set."""
        model = self.catalogue.models.get(model_name)
        if model is None:
            return [("usual", "")]
        choices = []
        for number, size in enumerate(model.sizes):
            count = size.num_parameters.get(dataset)
            label = f"{size.name}: {size.description}" + (f", {count:,} parameters" if count else "")
            choices.append((label, size.name if number else ""))
        return choices

    def strategy_choices(self, model_name: str) -> list[tuple[str, str]]:
        """Return (label, name) of the strategies that can train a model."""
        model = self.catalogue.models.get(model_name)
        return [
            (strategy.label, strategy.name)
            for strategy in self.catalogue.strategies.values()
            if model is None or strategy.name in model.strategies
        ]

    def _mistake_choices(self) -> list[tuple[str, str]]:
        return [(mistake.label, mistake.name) for mistake in self.catalogue.mistakes.values()]

    def _control(self, name: str, setting: Setting) -> Control:
        label, help_text = self._label_and_help(name, setting)
        common: dict[str, Any] = {
            "label": label,
            "info": help_text,
            "value": self._defaults[name],
            "elem_id": f"field-{name}",
        }
        if name == START_FIELD or not self.catalogue.is_applicable(name, self._defaults):
            common["visible"] = "hidden"  # a line of text above the data set shows the value of `start_from`
        option = self._own_options.get(name)
        kind, is_optional = (
            config_module.type_of(name) if option is None else options_module.type_of(option.hint)
        )
        if name in self._engine_fields and self._engine_fields[name].choices:
            return _engine_choice(self._engine_fields[name], common)
        if name == "label_column":
            # The first inspection adds the columns of the table.
            return _dropdown(choices=[("found automatically", "")], **common)
        if setting.catalog or setting.choices:
            return _dropdown(choices=self._choices(setting), **common)
        if kind is bool:
            return gr.Checkbox(**common)
        if kind is int and not is_optional:
            return gr.Number(precision=None, **common)
        if kind in (int, float):
            # A textbox instead of a Number: users can write 1e-3, invalid input is reported instead of
            # discarded, and an empty field stays empty (a Number in an opened accordion turns an empty value
            # into 0).
            default = self._defaults[name]
            self._typed_numbers[name] = kind is int
            return gr.Textbox(**{**common, "value": "" if default is None else f"{default:g}"}, max_lines=1)
        return gr.Textbox(max_lines=1, max_length=setting.max_length, **common)

    def _label_and_help(self, name: str, setting: Setting) -> tuple[str, str]:
        if name == "nproc_per_node":
            return self.ranks_label(self._machine)
        if name == "num_workers":
            limit = self._machine.max_loader_processes
            return setting.label, f"{setting.help} The limit for all ranks together is {limit}."
        return setting.label, setting.help

    def refresh_ranks(self, machine: Machine) -> dict[str, Any]:
        """Set the default number of ranks from the GPUs that are free now; return its control's update."""
        self._machine = machine
        ranks = {"nproc_per_node": machine.default_ranks()}
        self._unset, self._defaults = self._unset | ranks, self._defaults | ranks
        label, info = self.ranks_label(machine)
        return {"value": machine.default_ranks(), "label": label, "info": info}

    def ranks_label(self, machine: Machine) -> tuple[str, str]:
        """Return label and help of the number of ranks on a machine."""
        prefix = "On each machine. " if machine.num_nodes > 1 else ""
        if machine.num_gpus:
            use = machine.gpu_use()
            note = f" {machine.num_gpus} GPU{'s' if machine.num_gpus != 1 else ''}, {use}." if use else ""
            label = f"GPUs (up to {machine.max_ranks('cuda')})"
            return label, f"{prefix}One process trains on each GPU.{note}"
        note = "No GPU here" if machine.gpu_obstacle is None else "The GPUs here cannot be used"
        label = f"CPU ranks (up to {machine.max_cpu_ranks})"
        return label, f"{prefix}{note}: each rank is a process on the CPU."

    def _choices(self, setting: Setting) -> list[tuple[str, str]]:
        if setting.catalog == "models":
            return self.model_choices(str(self._defaults["dataset"]))
        if setting.catalog == "datasets":
            return self.dataset_choices()
        if setting.catalog == "model_sizes":
            return self.size_choices(str(self._defaults["model"]), str(self._defaults["dataset"]))
        if setting.catalog == "strategies":
            return self.strategy_choices(str(self._defaults["model"]))
        if setting.catalog == "mistakes":
            return [("none: a correct run", NO_MISTAKE), *self._mistake_choices()]
        return [(choice, choice) for choice in setting.choices]


def as_number(text: str, *, is_whole: bool) -> str:
    """Convert a number in a local notation (0,001, 1 000, 1.234,5) to Python's; return other text unchanged.

    Args:
        is_whole: read groups of three digits as thousands: 1,000 and 1.000.
    """
    number = _SEPARATORS.sub("", text)
    if _ENGLISH.fullmatch(number) or (is_whole and _GROUPS.fullmatch(number)):
        number = number.replace(",", "")
        number = number.replace(".", "") if is_whole else number
    elif _CONTINENTAL.fullmatch(number):
        number = number.replace(".", "").replace(",", ".")
    elif number.count(",") == 1:
        number = number.replace(",", ".")
    try:
        float(number)
    except ValueError:
        return text
    return number


def _engine_choice(field: PlacementField, common: dict[str, Any]) -> gr.Dropdown | gr.CheckboxGroup:
    """Create the control of a field whose choices the engine defines."""
    choices = [(choice.label, choice.value) for choice in field.choices]
    if field.is_several:
        return gr.CheckboxGroup(choices=choices, **{**common, "value": str(common["value"]).splitlines()})
    return _dropdown(choices=choices, **common)


def _dropdown(**options: Any) -> gr.Dropdown:
    """Create a dropdown whose value the plan validates, with better messages than Gradio's.

    Gradio's validation rejects a value that was selected just before the choices changed, although the user
    made no mistake. Users cannot type into it, so all "custom" values are former choices. `filterable` is set
    afterwards because Gradio ignores one of the two options when both are passed.
    """
    dropdown = gr.Dropdown(allow_custom_value=True, **options)
    dropdown.filterable = False
    return dropdown
