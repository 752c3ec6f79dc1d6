"""Real runs on the user's own data: a zip of images, a table, and data that is refused."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.harness import Launcher, LiveRun

LONG = {"num_epochs": 1000, "eval_every_steps": 20, "checkpoint_every_steps": 10**6}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare data in the test's own folder."""
    folder = tmp_path / "prepared"
    monkeypatch.setenv("TRAINERS_CACHE", str(folder))
    return folder


def last_metrics(live: LiveRun) -> dict[str, float]:
    metrics: dict[str, float] = live.events("eval")[-1]["metrics"]
    return metrics


def prepared_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()]


def test_zip_of_images_is_learnt_and_prepared_once(
    tmp_path: Path, launcher: Launcher, own_cache: Path
) -> None:
    dice = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "bars.zip", "w") as archive:
        for index in range(200):
            pixels = dice.integers(0, 80, (16, 16), dtype=np.uint8)
            place = int(dice.integers(3, 13))
            is_lying = index % 2 == 1
            pixels[place if is_lying else slice(None), slice(None) if is_lying else place] = 255
            path = tmp_path / "image.png"
            Image.fromarray(pixels).save(path)
            archive.write(path, f"bars/{('standing', 'lying')[index % 2]}/{index}.png")
    config = {
        "dataset": "own",
        "data_path": str(tmp_path / "bars.zip"),
        "model": "cnn",
        "max_steps": 40,
        **LONG,
    }
    live = launcher.start(**config).finish()
    assert last_metrics(live)["accuracy"] > 0.9
    pictures = live.events("sample")[-1]
    assert pictures["type"] == "images" and {"standing", "lying"} == {
        item["label"] for item in pictures["content"]
    }
    assert len(prepared_in(own_cache)) == 1
    logs = [path.read_text() for path in sorted(live.run.logs.glob("rank_*.log"))]
    assert sum("own data: prepared in" in log for log in logs) == 1, "one rank prepares, the other waits"
    again = launcher.start(**config, num_workers=1).finish()
    assert again.losses() == live.losses()
    assert not any("prepared in" in path.read_text() for path in again.run.logs.glob("rank_*.log"))


def test_table_is_learnt_in_its_own_units(tmp_path: Path, launcher: Launcher) -> None:
    dice = random.Random(0)
    rows = ["area;rooms;town;price"]
    for _ in range(400):
        area, rooms, town = dice.randint(30, 200), dice.randint(1, 6), dice.choice("ABC")
        rows.append(f"{area};{rooms};{town};{2000 * area + 10_000 * rooms + 30_000 * (town == 'B')}")
    (tmp_path / "flats.csv").write_text("\n".join(rows))
    own = {"dataset": "own", "data_path": str(tmp_path / "flats.csv"), "model": "linear"}
    live = launcher.start(**own, learning_rate=0.05, max_steps=200, **LONG).finish()
    metrics = last_metrics(live)
    assert metrics["r2"] > 0.99 and metrics["rmse"] < 10_000, metrics
    shown = live.events("sample")[-1]["content"]
    assert shown["columns"][:2] == ["area", "rooms"]
    assert all(30 <= row["inputs"][0] <= 200 for row in shown["rows"])


def test_data_with_faults_ends_the_run_with_their_names(tmp_path: Path, launcher: Launcher) -> None:
    rows = ["x,label", *[f"{i * 7 % 50},{'ab'[i % 2]}" for i in range(40)], "1,a,too many"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    live = launcher.start(dataset="own", data_path=str(tmp_path / "t.csv"), model="linear", max_steps=5)
    status = live.wait_for_end()
    assert status.state == "failed"
    words = "t.csv, line 42: 1 row has another number of cells than 2: line 42 has 3."
    # The first rank that fails ends the other ranks, possibly before they have logged the reason.
    assert any(words in path.read_text() for path in live.run.logs.glob("rank_*.log")), live.story()
    said = [event for event in live.events() if words in json.dumps(event)]
    assert said, [event for event in live.events() if event["kind"] not in ("step", "ranks")]
