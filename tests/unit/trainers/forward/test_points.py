"""What of a run is forwarded."""

from __future__ import annotations

from trainers.contract.config import Config
from trainers.forward.points import PointMaker, hyper_parameters


def event(seq: int, kind: str, time_unix_s: float = 0.0, **fields: object) -> dict[str, object]:
    return {"seq": seq, "time_unix_s": time_unix_s, "kind": kind, **fields}


def test_numbers_keep_their_names_and_missing_ones_are_left_out() -> None:
    maker = PointMaker(0)
    step = {"loss": 0.5, "lr": 0.1, "grad_norm": None, "samples_per_s": 9.0}
    step, evaluation, again = maker.points(
        [
            event(4, "step", 2.0, step=3, epoch=0, **step),
            event(
                5, "eval", 2.5, step=3, epoch=0, loss=None, metrics={"top5 accuracy\n§": 0.25}, confusion=None
            ),
            event(6, "step", 3.0, step=2, epoch=0, loss=0.4),
        ]
    )
    assert (step.seq, step.time_unix_s, step.step) == (4, 2.0, 3)
    assert step.values == {"train/loss": 0.5, "train/lr": 0.1, "train/samples_per_s": 9.0}
    assert evaluation.values == {"validation/top5 accuracy_": 0.25}
    assert again.step == maker.step == 2  # resumed from an older checkpoint


def test_devices_come_every_ten_seconds_at_the_latest_step() -> None:
    maker = PointMaker(7)
    device = {"rank": 1, "utilization_percent": 50.0, "memory_used_bytes": 10, "temperature_celsius": None}
    points = list(maker.points(event(at, "devices", float(at), devices=[device]) for at in range(25)))
    assert [(point.time_unix_s, point.step) for point in points] == [(0.0, 7), (10.0, 7), (20.0, 7)]
    names = {"devices/rank_1/utilization_percent": 50.0, "devices/rank_1/memory_used_bytes": 10.0}
    assert points[0].values == names


def test_the_configuration_is_sent_without_what_may_be_secret() -> None:
    config = Config(script="a.py", script_environment="TOKEN=1", forward_to="mlflow", max_steps=None)
    found = hyper_parameters(config)
    assert found["batch_size"] == 64 and found["script"] == "a.py"
    assert not {"script_environment", "forward_to", "max_steps", "schema_version"} & found.keys()
