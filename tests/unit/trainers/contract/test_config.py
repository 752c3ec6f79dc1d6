"""Tests of the configuration: defaults, and rejection of every kind of invalid value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainers import registry
from trainers.contract import config
from trainers.contract.config import Config, ConfigError


def problem_of(**raw: Any) -> config.Problem:
    """Return the only problem of a configuration."""
    with pytest.raises(ConfigError) as caught:
        config.parse(raw)
    (problem,) = caught.value.problems
    return problem


def test_fields_that_depend_on_the_strategy_or_the_model_are_named_by_one() -> None:
    registry.discover_all()
    for plugin, kinds in (("strategy", registry.strategies()), ("model", registry.models())):
        named = {name for kind in kinds.values() for name in kind.options}
        assert named == {name for name, each in config.settings().items() if each.by_plugin == plugin}
    assert "bucket_cap_mb" in registry.strategies()["ddp"].options
    assert {name for name, each in registry.models().items() if each.options} == {"hf_text", "hf_causal"}


def test_what_config_json_holds_is_read_back_and_numbers_as_text_as_a_form_sends_them() -> None:
    written = config.parse({"batch_size": 7, "max_steps": 3, "deterministic": True, "name": "é x"})
    assert config.parse(json.loads(json.dumps(written.to_json()))) == written
    parsed = config.parse({"batch_size": "64", "learning_rate": "1e-3", "max_steps": "", "seed": 5.0})
    assert (parsed.batch_size, parsed.learning_rate, parsed.max_steps, parsed.seed) == (64, 0.001, None, 5)
    assert type(parsed.seed) is int


def test_options_of_plug_ins_are_kept_as_they_are_and_nothing_else_is() -> None:
    read = config.parse({"batch_size": 7, "local_sgd.average_every": 4})
    assert read.plugin_options == {"local_sgd.average_every": 4}
    assert read.to_json()["local_sgd.average_every"] == 4
    assert config.parse(json.loads(json.dumps(read.to_json()))) == read
    assert "plugin_options" not in Config().to_json()
    for value in ([], {}, float("nan"), float("inf"), "x" * 4097, "\ud800"):
        assert problem_of(**{"local_sgd.average_every": value}).field == "local_sgd.average_every"
    for name in ("a.b.c", ".b", "a.", "a. b", "a.b\n"):
        assert problem_of(**{name: 1}).field == name


@pytest.mark.parametrize("name", list(config.default_values()))
def test_every_field_has_a_label_a_help_and_words_for_what_is_allowed(name: str) -> None:
    about = config.settings()[name]
    assert about.label and about.help.endswith(".")
    assert config.allowed_text(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 65_537),
        ("batch_size", "abc"),
        ("batch_size", 3.5),
        ("batch_size", float("nan")),
        ("batch_size", True),
        ("batch_size", None),
        ("batch_size", 10**400),
        ("learning_rate", 0),
        ("learning_rate", "nan"),
        ("learning_rate", 101),
        ("seed", 2**31),
        ("checkpoint_every_steps", "often"),
        ("device", "tpu"),
        ("deterministic", 1),
        ("model", None),
        ("name", "x" * 201),
    ],
)
def test_bad_value_is_refused_naming_field_value_and_what_is_allowed(name: str, value: Any) -> None:
    problem = problem_of(**{name: value})
    assert problem.field == name
    assert problem.value is value
    assert problem.allowed == config.allowed_text(name)
    message = str(problem)
    assert message.startswith(f"{name} is {repr(value)[:70]}")
    assert "allowed: " in message


def test_messages_name_the_allowed_range_and_the_nearest_field() -> None:
    assert str(problem_of(batch_size=0)) == "batch_size is 0; allowed: a whole number from 1 to 65,536."
    assert str(problem_of(learning_rate="abc")).endswith("is 'abc'; allowed: a number above 0, at most 100.")
    assert "one of auto, cpu, cuda" in str(problem_of(device="tpu"))
    assert "did you mean batch_size?" in str(problem_of(batchsize=3))
    assert "the fields are model, dataset" in str(problem_of(zzz=3))


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse({"batch_size": 0, "learning_rate": "abc", "nope_nope": 1})
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"batch_size", "learning_rate", "nope_nope"}


@pytest.mark.parametrize("version", [1, 4, 9])
def test_a_configuration_of_an_earlier_version_is_read_and_of_a_later_one_is_not(version: int) -> None:
    assert problem_of(schema_version=99).field == "schema_version"
    assert config.parse({"schema_version": version, "batch_size": 8}) == config.Config(batch_size=8)


@pytest.mark.parametrize(
    "address", ["file:///tmp", "http://user:word@host", "http://host/?write_token=1", "host:5000"]
)
def test_an_address_of_a_tracker_is_one_of_the_web_without_secrets(address: str) -> None:
    assert problem_of(forward_address=address).field == "forward_address"
    assert config.parse({"forward_address": "http://127.0.0.1:5000/mlflow/"}).forward_address


def test_what_is_no_object_or_a_crowd_of_fields_is_refused_before_any_is_looked_at() -> None:
    for raw in ([], "text", 3, None):
        with pytest.raises(ConfigError, match="one JSON object"):
            config.parse(raw)
    crowd = {f"f{number}": number for number in range(90_000)}
    with pytest.raises(ConfigError) as refused:
        config.parse(crowd)
    assert [problem.field for problem in refused.value.problems] == ["config"]
    assert str(refused.value) == "config is '90,000 fields'; allowed: an object of at most 200 fields."
