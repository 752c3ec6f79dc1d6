"""TensorBoard event files in the run's folder: `tensorboard --logdir RUNS_DIR` shows all runs."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

from trainers.forward.follower import TrackerTarget
from trainers.forward.points import Point

VERSION = "brain.Event:2"


class Run:
    """One event file. A restarted follower truncates it to the stored position before it appends."""

    def __init__(self, target: TrackerTarget) -> None:
        self._protos = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._tensors = importlib.import_module("tensorboard.util.tensor_util")
        records = importlib.import_module("tensorboard.summary.writer.record_writer")
        self._memory = target.memory
        folder = target.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        self.where = str(folder)
        name = f"events.out.tfevents.{int(time.time())}.{target.key[:8]}"
        self._file = (folder / str(self._memory.setdefault("file", name))).open("ab")
        self._file.truncate(int(self._memory.setdefault("size_bytes", 0)))
        self._writer = records.RecordWriter(self._file)
        if not self._memory["size_bytes"]:
            self._write(file_version=VERSION, wall_time=time.time())
            rows = "".join(f"\n| {key} | {value} |" for key, value in target.parameters.items())
            table = self._texts({"configuration": f"| field | value |\n|---|---|{rows}"})
            self._write(wall_time=time.time(), summary=table)
            hparams = importlib.import_module("tensorboard.plugins.hparams.summary_v2")
            self._write(wall_time=time.time(), summary=hparams.hparams_pb(target.parameters, target.key))
            self._note_size()

    def send(self, points: Sequence[Point]) -> None:
        """Append the points. The follower then stores the size up to which the file is complete."""
        value = self._summaries.Summary.Value
        for point in points:
            summary = self._texts(point.texts)
            summary.value.extend(
                value(tag=name, simple_value=number) for name, number in point.values.items()
            )
            self._write(wall_time=point.time_unix_s, step=point.step, summary=summary)
        self._note_size()

    def close(self, run_state: str) -> None:
        """Close the file, whose last text is the final state."""
        del run_state
        self._file.close()

    def _texts(self, texts: dict[str, str]) -> Any:
        summary = self._summaries.Summary()
        for name, text in texts.items():
            metadata = self._summaries.SummaryMetadata(data_class=1)
            metadata.plugin_data.plugin_name = "text"
            summary.value.add(
                tag=name, metadata=metadata, tensor=self._tensors.make_tensor_proto(text.encode())
            )
        return summary

    def _write(self, **content: object) -> None:
        self._writer.write(self._protos.Event(**content).SerializeToString())

    def _note_size(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._memory["size_bytes"] = self._file.tell()
