"""Tests of plug-ins: one file each, unique names, and a broken file without effect on other plug-ins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainers import build, registry
from trainers.files import plain_files
from trainers.files.plain_files import PLUGINS_VARIABLE


def test_everything_in_the_repository_is_discovered() -> None:
    assert registry.discover_all() == []
    assert {"mlp", "cnn", "gpt"} <= set(registry.models())
    assert {"fashion_mnist", "digits", "austen"} <= set(registry.datasets())
    assert {"ddp"} <= set(registry.strategies())


@pytest.mark.parametrize("what", ["model", "data set", "strategy"])
def test_duplicate_name_raises_and_the_first_one_stays(what: str) -> None:
    registry.discover_all()
    decorate, table, name = {
        "model": (
            registry.register_model("cnn", label="", description="", tasks=()),
            registry.models(),
            "cnn",
        ),
        "data set": (registry.register_dataset("digits", label=""), registry.datasets(), "digits"),
        "strategy": (
            registry.register_strategy("ddp", label="", description="", sharing=""),
            registry.strategies(),
            "ddp",
        ),
    }[what]
    first = table[name]
    with pytest.raises(ValueError, match=f"already a {what} called '{name}'"):
        decorate(object)  # type: ignore[operator]
    assert table[name] is first


def test_own_files_are_found_next_to_the_built_in_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, own = tmp_path / "some_plugins", tmp_path / "own" / "some_plugins"
    for folder in (package, own):
        folder.mkdir(parents=True)
        (folder / "same_name.py").touch()
    (package / "__init__.py").touch()
    (own / "mine.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS_VARIABLE, str(tmp_path / "own"))
    before = plain_files.fingerprint_of_code()
    try:
        (broken,) = registry.discover("some_plugins")
        assert sys.modules["some_plugins.mine"].LOADED
    finally:
        for name in [name for name in sys.modules if name.startswith("some_plugins")]:
            del sys.modules[name]
    assert broken.message == "ValueError: there are two files same_name.py: rename yours"
    (own / "mine.py").write_text("LOADED = False\n")
    assert plain_files.fingerprint_of_code() != before, "the page reads the catalogue again"


def test_name_that_is_not_there_names_field_value_and_what_there_is() -> None:
    with pytest.raises(ValueError, match="model is") as caught:
        build.pick({"cnn": 1, "mlp": 2}, "cnm", "model")
    assert str(caught.value) == "model is 'cnm', but there are: cnn, mlp (did you mean cnn?)"
    assert build.pick({"cnn": 1}, "cnn", "model") == 1
