"""Small valid files of each kind: files that Hypothesis mutates."""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile

from PIL import Image

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
MODES = ("RGB", "L", "P", "RGBA", "I;16", "1", "CMYK", "LA")


def of(target: str) -> list[bytes]:
    """Return the examples of one fuzz target."""
    return {
        "events": lambda: [bytes([size]) + event_lines() for size in (0, 6, 255)],
        "contract": contract_files,
        "csv": lambda: [table(), table(delimiter=";"), texts(), b'a,b\n"x\ny",1\n' * 2],
        "text": lambda: [b"To be, or not to be, that is the question. " * 3, "äöü €𝄞\r\n".encode() * 9],
        "zip": lambda: [image_zip(compressed=False), image_zip(compressed=True)],
        "image": images,
        "parquet": parquet,
    }[target]()


def event_lines() -> bytes:
    """Return a short run's events."""
    device = {"rank": 0, "node": 0, "kind": "cpu", "index": 0, "name": "CPU", "utilization_percent": 3.0}
    step = {"epoch": 0, "loss": 2.3, "lr": 0.1, "grad_norm": None}
    step |= {"samples_per_s": 9.0, "step_time_s": 0.1, "data_time_s": 0.0}
    fields = [
        {"kind": "state", "state": "starting", "reason": ""},
        {"kind": "plan", "num_steps": 20, "num_train": 100, "class_names": ["a", "ä"]},
        {"kind": "step", "step": 1, **step},
        {"kind": "step", "step": 2, **step, "loss": None},
        {"kind": "devices", "devices": [device]},
        {"kind": "ranks", "ranks": [{"rank": 0, "step": 2}]},
        {"kind": "eval", "step": 2, "epoch": 0, "loss": 2.0, "metrics": {"accuracy": 0.5}, "confusion": None},
        {"kind": "checkpoint", "step": 2, "path": "checkpoints/step_2", "size_bytes": 9, "reason": "end"},
        {"kind": "error", "code": "x", "message": "m", "hint": "h", "rank": None, "traceback": None},
        {"kind": "state", "state": "failed", "reason": "x"},
    ]
    lines = [
        json.dumps({"seq": seq, "time_unix_s": 1.5 + seq, **each}, separators=(",", ":"))
        for seq, each in enumerate(fields)
    ]
    return "".join(line + "\n" for line in lines).encode()


def contract_files() -> list[bytes]:
    """Return a valid file of each kind except events, each prefixed with the number of its kind."""
    files: list[object] = [
        {"schema_version": 4, "dataset": "digits", "model": "mlp", "batch_size": 32, "seed": None},
        {"schema_version": 1, "state": "running", "pid": 7, "pid_start_time": 1.5, "started_unix_s": 5.0},
        {"schema_version": 1, "token": "a" * 16, "num_ranks": 2, "asked_unix_s": 1.5, "resume_step": None},
        {"schema_version": 1, "token": "a" * 16, "num_ranks": 2, "asked_unix_s": 1.5, "granted_unix_s": 2.5},
        {"schema_version": 1, "tags": ["a"], "note": "x", "name": "n"},
        {"id": "a1", "time_unix_s": 1.5, "name": "stop", "save": True},
        {"format_version": 2, "step": 2, "world_size": 2, "files": {"state.json": {"size_bytes": 2}}},
        {"progress": {"step": 2, "epoch": 0}, "binding": {"num_train": 3}, "scaler": None},
    ]
    return [bytes([number]) + json.dumps(file).encode() + b"\n" for number, file in enumerate(files)]


def table(delimiter: str = ",") -> bytes:
    """Return a table of numbers and categories with a label."""
    rows = [["size", "colour", "label"]]
    rows += [[f"{n}.5", "red" if n % 3 else "blue", "ab"[n % 2]] for n in range(12)]
    return "".join(delimiter.join(row) + "\n" for row in rows).encode()


def texts() -> bytes:
    """Return a table of texts with a label."""
    return b"text,label\n" + b"".join(
        f'"a text, number {n} of some words",{"xy"[n % 2]}\n'.encode() for n in range(12)
    )


def images() -> list[bytes]:
    """Return one small image of each format and pixel mode."""
    found = [image(name, mode) for name in FORMATS for mode in MODES]
    return [raw for raw in found if raw is not None]


def image(name: str, mode: str) -> bytes | None:
    """Return a small image, or None if the format does not support the mode."""
    file = io.BytesIO()
    try:
        Image.new(mode, (6, 5)).save(file, name)
    except (OSError, KeyError, ValueError):
        return None
    return file.getvalue()


def image_zip(*, compressed: bool) -> bytes:
    """Return a zip with two classes of tiny images."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for n in range(4):
            image = io.BytesIO()
            Image.new("L", (4, 4), 40 * n).save(image, "PPM")
            archive.writestr(f"{'ab'[n % 2]}/{n}.pgm", image.getvalue())
    return file.getvalue()


def parquet() -> list[bytes]:
    """Return two small tables, or none if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        return []
    import pyarrow
    from pyarrow import parquet as written

    found = []
    for compression in ("none", "snappy"):
        file = pyarrow.BufferOutputStream()
        rows = {"size": [n + 0.5 for n in range(12)], "label": ["ab"[n % 2] for n in range(12)]}
        written.write_table(pyarrow.table(rows), file, compression=compression)
        found.append(file.getvalue().to_pybytes())
    return found
