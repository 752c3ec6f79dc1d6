"""A user's own data, by path: images in class folders, a table, or running text."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import torch

from trainers.data.dataset import DataOptions, DataSpec, Split
from trainers.data.own import cache, processes
from trainers.data.own.cache import PreparedData
from trainers.data.own.problems import DataError, Problems
from trainers.data.own.recognise import AnyKind, data_path, recognise

log = logging.getLogger(__name__)


class Own:
    """The data at `options.path`; prepared at first use and read from the cache afterwards."""

    def __init__(self, options: DataOptions) -> None:
        self._options = options
        self.problems = Problems()

    def spec(self) -> DataSpec:
        """Describe the data; the first call prepares it.

        Raises:
            DataError: if the data cannot be used; lists problems by file and line.
            NotInstalledError: if a required package is missing.
        """
        return self.kind.spec(self.prepared)

    def load(self, device: torch.device) -> tuple[Split, Split]:
        """Return the training and validation split; large data stays on disk and is read batch by batch."""
        return self.kind.splits(self.prepared, device)

    @functools.cached_property
    def kind(self) -> AnyKind:
        """The reader for this kind of data."""
        kind = recognise(self._options, self.problems)
        self.problems.check(self._options.path)
        assert kind is not None
        return kind

    @functools.cached_property
    def fingerprint(self) -> str:
        """Name of the prepared folder; it changes if a file or an option changes."""
        return cache.fingerprint(data_path(self._options), self.kind.options())

    @functools.cached_property
    def prepared(self) -> PreparedData:
        """The prepared data, created if necessary."""
        return cache.find_or_make(self.fingerprint, self._prepare)

    def prepare_from(self, inspection: Any) -> None:
        """Prepare from an existing inspection, unless it is prepared already."""

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
        """Prepare, and check that the data has not changed since the inspection."""
        try:
            meta = self.kind.prepare(inspection, folder, self.problems)
        except (ValueError, LookupError, OSError):
            # If the data changed, report that instead of the error that follows from it.
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
            raise DataError.of(self._options.path, "the data", "it changed while it was read.", hint)
