"""A person's own data, by its path: images in class folders, a table, or running text."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import torch

from trainers.data.dataset import DataOptions, DataSpec, Split
from trainers.data.own import cache, processes
from trainers.data.own.cache import Prepared
from trainers.data.own.problems import DataError, DataProblem, Problems
from trainers.data.own.recognise import AnyKind, data_path, recognise

log = logging.getLogger(__name__)


class Own:
    """What lies at `options.path`; prepared on first use, found prepared from then on."""

    def __init__(self, options: DataOptions) -> None:
        self._options = options
        self.problems = Problems()

    def spec(self) -> DataSpec:
        """Describe the data; the first time that takes as long as preparing it.

        Raises:
            DataError: when the data cannot be used, with its faults by name and line.
            NotInstalledError: when reading it needs a package that is not there.
        """
        return self.kind.spec(self.prepared)

    def load(self, device: torch.device) -> tuple[Split, Split]:
        """Return training and validation; what is large stays on the disk, and is read batch by batch."""
        return self.kind.splits(self.prepared, device)

    @functools.cached_property
    def kind(self) -> AnyKind:
        """What reads this data."""
        kind = recognise(self._options, self.problems)
        self.problems.check(self._options.path)
        assert kind is not None
        return kind

    @functools.cached_property
    def fingerprint(self) -> str:
        """The name of what is prepared: another one when a file or an option changes."""
        return cache.fingerprint(data_path(self._options), self.kind.options())

    @functools.cached_property
    def prepared(self) -> Prepared:
        """The prepared data, made if it is not there."""
        return cache.find_or_make(self.fingerprint, self._prepare)

    def prepare_from(self, inspection: Any) -> None:
        """Prepare with what was already looked at, if it is not prepared yet."""

        def make(folder: Path) -> cache.Meta:
            return self._prepare_inspected(inspection, folder)

        self.prepared = cache.find_or_make(self.fingerprint, make)

    def _prepare(self, folder: Path) -> cache.Meta:
        with processes.bounded(self._options.path, seconds=processes.PREPARE_S):
            inspection: Any = self.kind.inspect(self.problems)
            self.problems.check(self._options.path)
            meta = self._prepare_inspected(inspection, folder)
        for note in self.problems.shown:
            log.info("own data: %s", note)
        return meta

    def _prepare_inspected(self, inspection: Any, folder: Path) -> cache.Meta:
        """Prepare, and see that nobody wrote to the data between the look and now."""
        try:
            meta = self.kind.prepare(inspection, folder, self.problems)
        except (ValueError, LookupError, OSError):
            # What the look saw need not be there any more; data that stayed as it was has another fault.
            self._check_unchanged()
            raise
        self._check_unchanged()
        return meta

    def _check_unchanged(self) -> None:
        try:
            is_same = cache.fingerprint(data_path(self._options), self.kind.options()) == self.fingerprint
        except OSError:
            is_same = False
        if not is_same:
            hint = "Wait until nobody writes to it, and look at it again."
            problem = DataProblem(where="the data", message="it changed while it was read.", hint=hint)
            raise DataError(self._options.path, [problem], 1)
