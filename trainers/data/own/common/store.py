"""Arrays on disk: written piece by piece, read row by row through a memory map that is given back."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

META = "meta.json"
SEAL = "seal"
# Pages a map has touched count as this process's memory; after so many bytes they are handed back.
BYTES_BEFORE_RELEASE = 64 * 2**20
# Up to this size a split is held in memory whole, on the device of the model.
SMALL_BYTES = 256 * 2**20

Array = npt.NDArray[Any]


class ArrayWriter:
    """Writes the rows of one array, as many as come.

    Args:
        row_shape: the shape of one row; () for plain numbers.
    """

    def __init__(self, folder: Path, name: str, dtype: str, row_shape: tuple[int, ...]) -> None:
        self.name = name
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self._num_rows = 0
        self._file = (folder / f"{name}.bin").open("wb")

    def append(self, rows: Array) -> None:
        """Write (rows, *row_shape) values."""
        assert rows.shape[1:] == self._row_shape
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._num_rows += len(rows)

    def close(self) -> dict[str, Any]:
        """Bring everything to the disk and return what `MappedArray` needs to know."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"dtype": self._dtype.str, "shape": [self._num_rows, *self._row_shape]}


def write_array(folder: Path, name: str, values: Array) -> dict[str, Any]:
    """Write a whole array; return what `MappedArray` needs to know."""
    writer = ArrayWriter(folder, name, values.dtype.str, values.shape[1:])
    if values.size:
        writer.append(values)
    return writer.close()


class MappedArray:
    """An array on disk, opened when first read; pickled by its path, so that each process opens its own."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._map: mmap.mmap | None = None
        self._num_touched = 0

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def take(self, rows: Array) -> Array:
        """Return a copy of these rows."""
        return self._given_back(self._view()[rows])

    def slice(self, start: int, end: int) -> Array:
        """Return a copy of the rows from `start` up to `end`."""
        return self._given_back(self._view()[start:end].copy())

    def all(self) -> Array:
        """Return a copy of the whole array."""
        return self.slice(0, len(self))

    def windows(self, starts: Array, length: int) -> Array:
        """Return (starts, length): a copy of `length` values from each start of a plain array."""
        return self._given_back(self._view()[starts[:, None] + np.arange(length)])

    def _view(self) -> Array:
        if self.num_bytes == 0:
            return np.empty(self.shape, self.dtype)
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), self.num_bytes, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, self.dtype).reshape(self.shape)

    def _given_back(self, rows: Array) -> Array:
        # A row touches at least a page, and the kernel reads ahead around it.
        self._num_touched += max(rows.nbytes, len(rows) * 16 * mmap.PAGESIZE)
        if (
            self._map is not None
            and self._num_touched > BYTES_BEFORE_RELEASE
            and hasattr(mmap, "MADV_DONTNEED")
        ):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._num_touched = 0
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None, "_num_touched": 0}


class Prepared:
    """A prepared folder: what is known of the data, and its arrays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / META).read_text("utf-8"))

    def array(self, name: str) -> MappedArray:
        """Return one of the arrays by name."""
        about = self.meta["arrays"][name]
        return MappedArray(self.folder / f"{name}.bin", about["dtype"], tuple(about["shape"]))

    def is_whole(self) -> bool:
        """Return True if the meta data, and the size and time of each file, are as they were written."""
        meta = dict(self.meta)
        return bool(meta.pop(SEAL) == _seal(self.folder, meta))


def sealed(folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Return the meta data of a prepared folder with a seal that shows later changes."""
    plain: dict[str, Any] = json.loads(json.dumps(meta))
    return plain | {SEAL: _seal(folder, plain)}


def _seal(folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
    files = {name: (folder / f"{name}.bin").stat() for name in meta["arrays"]}
    return {
        "meta": hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16).hexdigest(),
        "files": {name: [status.st_size, status.st_mtime_ns] for name, status in files.items()},
    }
