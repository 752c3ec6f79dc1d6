"""Finds images in folders and zips, and decodes them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import lzma
import math
import multiprocessing
import os
import re
import stat
import statistics
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from trainers.data.dataset import NotInstalledError
from trainers.data.own import HEIF_REQUIREMENT, processes
from trainers.data.own.problems import Problems, quoted
from trainers.data.own.reading import guess_names
from trainers.machine import os_errors

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

MAX_FILES = 2_000_000
MAX_NAME_CHARACTERS = 1024
MAX_FILE_BYTES = 256 * 2**20
MAX_UNPACKED_BYTES = 500 * 10**9
# Images are already compressed: a zip that grows more than this when unpacked is a zip bomb.
MAX_RATIO = 100
RATIO_MATTERS_FROM = 20 * 2**20
STARTS = (b"PK\x03\x04", b"PK\x05\x06")
# The errors that damaged archives raise.
PACKED = (zipfile.BadZipFile, NotImplementedError, struct.error, zlib.error)
DAMAGED = (*PACKED, EOFError, ValueError, OSError, lzma.LZMAError)
REPACK = "Create the zip again from the folder of the images."
# Files and folders that macOS, Windows, Synology, QNAP and Linux create everywhere.
IGNORED_NAMES = (
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information",
    "@eadir", "#recycle", "@recycle", "lost+found", "lost.dir", "icon\r",
)  # fmt: skip


class FolderSource:
    """The files below a folder; links to folders are not followed, because they may form cycles."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path = path
        self.files: list[str] = []
        self.empty_folders: list[str] = []

        def refused(error: OSError) -> None:
            location = os.path.relpath(error.filename, path)
            hint = "Move it up, or allow this page's user to read it."
            problems.fault(location, f"the folder cannot be opened ({error.strerror}).", hint)

        for folder, inside, files in processes.walk(path, refused):
            inside[:] = [name for name in inside if not is_ignored(name)]
            below = PurePosixPath(Path(folder).relative_to(path).as_posix())
            for name in inside:
                if Path(folder, name).is_symlink():
                    message = "is a link to a folder and is not followed."
                    problems.note(str(below / name), message, "Give the folder itself, or copy it here.")
            names = [str(below / name) for name in files if not is_ignored(name)]
            self.files += names
            if not names and not inside and below.parts:
                self.empty_folders.append(str(below))
            if len(self.files) > MAX_FILES:
                problems.fault(path.name, f"contains more than {MAX_FILES:,} files.", "Use fewer images.")
                self.files, self.empty_folders = [], []
                return

    def open(self, name: str) -> BinaryIO:
        """Open a file.

        Raises:
            OSError: if it is not a regular file, too large or empty.
        """
        path = self._path / name
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a plain file")
        _check_size(status.st_size)
        return path.open("rb")


class ZipSource:
    """The files in a zip; the zip is rejected if its central directory is suspicious."""

    def __init__(self, path: Path, problems: Problems, encoding: str = "") -> None:
        self._path = path
        self.files: list[str] = []
        self.empty_folders: list[str] = []
        self._infos: dict[str, zipfile.ZipInfo] = {}
        with path.open("rb") as file:
            if file.read(4) not in STARTS:
                problems.fault(path.name, "it does not begin like a zip.", f"It may be damaged. {REPACK}")
                return
        try:
            self._zip = zipfile.ZipFile(path)
        except DAMAGED as error:
            hint = "It may be incomplete or no zip at all: copy or create it again."
            problems.fault(path.name, f"the zip cannot be opened ({os_errors.explain(error)}).", hint)
            return
        self._pid = os.getpid()
        infos = self._zip.infolist()
        if (reason := _why_refused(infos, path.stat().st_size)) is not None:
            problems.fault(path.name, reason, f"{REPACK} Or unpack it and give the folder.")
            return
        self._list(infos, encoding, problems)

    def open(self, name: str) -> BinaryIO:
        """Unpack a file into memory; zipfile verifies its checksum.

        Raises:
            OSError, zipfile.BadZipFile: if it cannot be read.
        """
        if self._pid != os.getpid():  # forked: the file position is shared with the parent
            self._zip.fp, self._pid = self._path.open("rb"), os.getpid()
        info = self._infos[name]
        _check_size(info.file_size)
        with self._zip.open(info) as member:
            # Read at most the declared size: a malicious file can be larger without limit.
            return io.BytesIO(member.read(info.file_size))

    def _list(self, infos: Sequence[zipfile.ZipInfo], encoding: str, problems: Problems) -> None:
        empty = set()
        for info, decoded in zip(infos, _decoded_names(infos, encoding, problems), strict=True):
            name = str(PurePosixPath(decoded.replace("\\", "/")))
            if any(is_ignored(part) for part in name.split("/")):
                continue
            if info.is_dir():
                empty.add(name)
            elif name in self._infos:
                problems.fault(quoted(name), "is in the zip twice.", REPACK)
            else:
                self._infos[name] = info
        self.files = sorted(self._infos)
        parents = {str(parent) for name in [*self.files, *empty] for parent in PurePosixPath(name).parents}
        self.empty_folders = sorted(empty - parents)


ImageSource = FolderSource | ZipSource


def source_of(path: Path, problems: Problems, encoding: str = "") -> ImageSource:
    """Return the files of a folder or zip."""
    return FolderSource(path, problems) if path.is_dir() else ZipSource(path, problems, encoding)


def is_ignored(name: str) -> bool:
    """Return True if operating systems create files or folders of this name."""
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_FILE_BYTES:
        raise OSError(f"it is larger than {MAX_FILE_BYTES // 2**20} MB")
    if size_bytes == 0:  # also files in /proc, which have content nevertheless
        raise OSError("it is empty")


def _why_refused(infos: Sequence[zipfile.ZipInfo], size_bytes: int) -> str | None:
    unpacked = sum(info.file_size for info in infos)
    if len(infos) > MAX_FILES:
        return f"contains {len(infos):,} files; at most {MAX_FILES:,} are allowed."
    if unpacked > MAX_UNPACKED_BYTES:
        maximum = MAX_UNPACKED_BYTES // 10**9
        return f"would be {unpacked / 1e9:,.0f} GB when unpacked; at most {maximum} are allowed."
    if unpacked > max(RATIO_MATTERS_FROM, MAX_RATIO * size_bytes):
        return f"grows {unpacked // size_bytes:,}-fold when unpacked; images at most {MAX_RATIO}-fold."
    for info in infos:
        path = PurePosixPath(info.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or info.filename[1:2] == ":":
            return f"{quoted(info.filename)} has a path that leads out of the zip."
        if len(info.filename) > MAX_NAME_CHARACTERS or len(path.parts) > processes.MAX_DEPTH:
            longest = f"{MAX_NAME_CHARACTERS:,} characters or {processes.MAX_DEPTH} folders"
            return f"{quoted(info.filename)} has a path of more than {longest}."
        if info.flag_bits & 0x1:
            return f"{quoted(info.filename)} is encrypted."
        # zipfile decompresses other formats in one go, without a size limit.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"{quoted(info.filename)} is not compressed with deflate."
    return None


def _decoded_names(infos: Sequence[zipfile.ZipInfo], encoding: str, problems: Problems) -> list[str]:
    """Return the names of a zip's members: UTF-8 if flagged or valid, else in a guessed encoding."""
    raw = [_raw_name(info) for info in infos]
    unsure = sorted({folder for name in raw if name for folder in name.split(b"/") if not folder.isascii()})
    if not unsure:
        return [info.filename for info in infos]
    try:
        io.TextIOWrapper(io.BytesIO(), encoding or "utf-8")
    except LookupError:
        problems.fault("the encoding", f"there is no encoding {quoted(encoding)}.", "Use one such as cp932.")
        encoding = ""
    encoding = encoding or guess_names(unsure)
    if encoding != "utf-8":
        example = quoted(unsure[0].decode(encoding, errors="replace"))
        hint = 'If that is wrong, set the encoding in the reading, such as {"encoding": "cp932"}.'
        problems.note("the zip", f"names in it are read as {encoding}, such as {example}.", hint)
    return [
        info.filename if name is None else name.decode(encoding, errors="replace")
        for info, name in zip(infos, raw, strict=True)
    ]


def _raw_name(info: zipfile.ZipInfo) -> bytes | None:
    """Return the bytes of a name that zipfile decoded as cp437 because it is not marked as UTF-8."""
    try:
        return None if info.flag_bits & 0x800 else info.filename.encode("cp437")
    except UnicodeEncodeError:  # decoded from Info-ZIP's extra field
        return None


# Formats whose readers start no external program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "AVIF", "HEIF")
HEIF_START = re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL)
MAX_PIXELS = 80_000_000
LARGE_PIXELS = 16_000_000
MAX_SCANS = 500  # of a progressive JPEG: a scan of a few bytes costs a pass over all pixels
MAX_REASON = 200
SMALL_SIDE = 64
LARGE_SIDE = 128
SMALLEST_SIDE = 4
MAX_ASPECT = 2.0
GREY_MODES = ("1", "L", "LA")
DEEP_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # more than 8 bits of grey
COLOUR_MODES = ("P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "PA", "La", "RGBa", "HSV", "LAB")
DEPTHS = (8, 10, 12, 14, 16, 24, 32)
ORIENTATION = 0x0112  # the EXIF tag
QUARTER_TURNS = (5, 6, 7, 8)
_HEADERS_AT_ONCE = 64
_IMAGES_AT_ONCE = 16

Pixels = npt.NDArray[np.uint8]
Shape = tuple[int, int, int]  # channels, height, width
Decoded = tuple[list[str], Pixels, dict[str, str]]  # decoded files, their pixels, reasons for the others
Range = tuple[float, float]  # the values that become 0 and 255 in images of more than 8 bits
FULL_RANGE = (0.0, 65535.0)

# Held while a large image is decoded: two at the same time could exceed the memory of all processes.
_one_large_image = multiprocessing.get_context("fork").Lock()


class UnreadableImageError(ValueError):
    """An image cannot be decoded; the message gives the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageHeader:
    """Size and mode of an image, read without decoding; the size is after EXIF rotation.

    Attributes:
        is_deep: True for more than 8 bits per channel.
        has_frames: True for several frames or pages.
    """

    width: int
    height: int
    is_grey: bool
    is_deep: bool = False
    has_frames: bool = False


@functools.cache
def pillow() -> tuple[ModuleType, ModuleType]:
    """Import Pillow's Image and ImageOps.

    Raises:
        NotInstalledError: if it is missing; contains the command that installs it.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        message = f"Images need Pillow, which cannot be used here ({error}): pip install pillow"
        raise NotInstalledError(message) from error
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    Image.init()  # loads the readers of all formats; only those in FORMATS are used
    # Pillow checks this before it allocates pixels. Up to twice the number it only warns: make that an error.
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    return Image, ImageOps


def is_image(source: ImageSource, name: str) -> bool:
    """Return True if a file without an image suffix begins like an image."""
    processes.check_time()
    try:
        with unreadable(), source.open(name) as file:
            start = file.read(32)
    except UnreadableImageError:
        return False
    readers = pillow()[0].OPEN
    # BMP and PPM begin with two letters with which a text could also begin.
    accepts = [readers[form][1] for form in FORMATS if form in readers and form not in ("BMP", "PPM")]
    return bool(HEIF_START.match(start)) or any(accept is not None and accept(start) for accept in accepts)


def read_headers(source: ImageSource, names: Sequence[str]) -> Iterator[ImageHeader | str]:
    """Yield each file's header, or the reason why it cannot be read.

    Raises:
        NotInstalledError: if a file is HEIC and pillow-heif is missing.
    """

    def read(pieces: range, _: memoryview) -> list[ImageHeader | str]:
        return [_read_header(source, names[index]) for index in pieces]

    for headers, _ in processes.in_chunks(read, len(names), _HEADERS_AT_ONCE):
        yield from headers


def decode_all(
    source: ImageSource,
    names: Sequence[str],
    shape: Shape,
    value_range: Range,
    known: Mapping[str, Pixels] | None = None,
) -> Iterator[Decoded]:
    """Decode files in parallel and yield a result per chunk; files in `known` are not decoded again.

    The pixels, (files, channels, height, width), are in memory that is reused for the next result.
    """

    def pixels_in(room: memoryview) -> Pixels:
        return np.frombuffer(room, dtype=np.uint8).reshape(_IMAGES_AT_ONCE, *shape)

    def decode_some(pieces: range, room: memoryview) -> tuple[list[str], dict[str, str]]:
        pixels = pixels_in(room)
        good: list[str] = []
        failures: dict[str, str] = {}
        for name in [names[index] for index in pieces]:
            try:
                seen = None if known is None else known.get(name)
                pixels[len(good)] = decode(source, name, shape, value_range) if seen is None else seen
                good.append(name)
            except UnreadableImageError as error:
                failures[name] = str(error)
        return good, failures

    room_bytes = _IMAGES_AT_ONCE * math.prod(shape)
    for (good, failures), room in processes.in_chunks(decode_some, len(names), _IMAGES_AT_ONCE, room_bytes):
        yield good, pixels_in(room)[: len(good)], failures


class Opener(Protocol):
    """Opens images by name."""

    def open(self, name: str) -> BinaryIO:
        """Return an image file for reading."""
        ...


def decode(source: Opener, name: str, shape: Shape, value_range: Range = FULL_RANGE) -> Pixels:
    """Return (channels, height, width) bytes: rotated upright, scaled to cover the shape, centre-cropped.

    Raises:
        UnreadableImageError: if the image is broken.
    """
    with unreadable(), source.open(name) as file, _open(file) as image:
        if "progressive" in image.info:
            _check_scans(file)
        is_large = image.width * image.height > LARGE_PIXELS
        with _one_large_image if is_large else contextlib.nullcontext():
            return _fitted(image, shape, value_range)


def range_of(source: ImageSource, names: Sequence[str]) -> Range:
    """Return the value range in use in images of more than 8 bits; unreadable images are skipped."""
    low, high = 0.0, 0.0
    for name in names:
        processes.check_time()
        with (
            contextlib.suppress(UnreadableImageError), unreadable(), source.open(name) as file,
            _open(file) as image,
        ):  # fmt: skip
            values = _values(image)
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    if low < 0 or high <= 1:
        return low, max(high, low + 1.0)
    return 0.0, next((2.0**bits - 1 for bits in DEPTHS if high < 2**bits), high)


def choose_shape(headers: Sequence[ImageHeader]) -> Shape:
    """Return the (channels, height, width) that all images are scaled to.

    The short side is the median of the short sides, at most 64 pixels, or 128 if the median is at least
    128. If all images have the same aspect ratio, up to 2:1, they keep it; else they become squares.
    """
    channels = 1 if all(header.is_grey for header in headers) else 3
    median = int(statistics.median_low(min(header.width, header.height) for header in headers))
    short = LARGE_SIDE if median >= LARGE_SIDE else max(SMALLEST_SIDE, min(median, SMALL_SIDE))
    aspects = [header.width / header.height for header in headers]
    low, high = min(aspects), max(aspects)
    if high / low < 1.02 and low >= 1 / MAX_ASPECT and high <= MAX_ASPECT:
        wide = statistics.median(aspects)
        return channels, round(short / min(1.0, wide)), round(short * max(1.0, wide))
    return channels, short, short


def _read_header(source: ImageSource, name: str) -> ImageHeader | str:
    try:
        with unreadable(), source.open(name) as file:
            if "HEIF" not in pillow()[0].OPEN and HEIF_START.match(file.read(16)):
                message = f"HEIC images need pillow-heif: pip install {HEIF_REQUIREMENT}. Or save as JPEG."
                raise NotInstalledError(message, requirement=HEIF_REQUIREMENT)
            file.seek(0)
            with _open(file) as image:
                width, height = image.size
                # Pillow decodes a PNG completely to find EXIF data that is not at its start.
                may_be_turned = image.format != "PNG" or "exif" in image.info
                if may_be_turned and image.getexif().get(ORIENTATION) in QUARTER_TURNS:
                    width, height = height, width
                return ImageHeader(
                    width=width,
                    height=height,
                    is_grey=image.mode in GREY_MODES or image.mode in DEEP_MODES,
                    is_deep=image.mode in DEEP_MODES or _is_deep_colour(image),
                    has_frames=getattr(image, "is_animated", False),
                )
    except UnreadableImageError as error:
        return str(error)


def _open(file: BinaryIO) -> PilImage:
    image_module, _ = pillow()
    # Pillow raises KeyError for a format that it was built without.
    image: PilImage = image_module.open(file, formats=[name for name in FORMATS if name in image_module.OPEN])
    size = f"it is {image.width:,} × {image.height:,} pixels"
    if not image.width * image.height:
        raise UnreadableImageError(f"{size}, so there is nothing in it")
    if image.width * image.height > MAX_PIXELS:
        raise UnreadableImageError(f"{size}; at most {MAX_PIXELS // 10**6} million are read")
    if image.mode not in (*GREY_MODES, *DEEP_MODES, *COLOUR_MODES):
        raise UnreadableImageError(f"its pixels are of the kind {image.mode}, not bytes of grey or colour")
    return image


def _check_scans(file: BinaryIO) -> None:
    offset = file.tell()
    file.seek(0)
    num_scans = 0
    while chunk := file.read(2**20):
        num_scans += chunk.count(b"\xff\xda")  # the start-of-scan marker, which cannot occur in pixel data
    file.seek(offset)
    if num_scans > MAX_SCANS:
        raise UnreadableImageError(f"it is stored in {num_scans:,} passes; {MAX_SCANS} are the most")


def _fitted(image: PilImage, shape: Shape, value_range: Range) -> Pixels:
    image_module, operations = pillow()
    channels, height, width = shape
    is_deep = image.mode in DEEP_MODES or (_is_deep_colour(image) and value_range[1] < FULL_RANGE[1])
    # `draft` decodes a JPEG at 1/2, 1/4 or 1/8 of its size, which is much faster.
    longest = max(height, width)
    image.draft(None, (longest, longest))
    operations.exif_transpose(image, in_place=True)
    if is_deep:
        low, high = value_range
        scaled = (_values(image) - low) * (255.0 / (high - low))
        image = image_module.fromarray(scaled.clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        white = image_module.new("RGBA", image.size, (255, 255, 255, 255))
        image = image_module.alpha_composite(white, image.convert("RGBA"))
    image = image.convert("L" if channels == 1 else "RGB")
    image = operations.fit(image, (width, height), method=image_module.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _is_deep_colour(image: PilImage) -> bool:
    """Return True if an image has 16 bits per colour, of which Pillow reads the upper 8."""
    return image.mode == "RGB" and any("16" in str(tile.args) for tile in getattr(image, "tile", ()))


def _values(image: PilImage) -> npt.NDArray[np.float32]:
    """Return the values of an image of more than 8 bits."""
    values = np.nan_to_num(np.asarray(image).astype(np.float32))
    return values * 257.0 if image.mode == "RGB" else values


@contextlib.contextmanager
def unreadable() -> Iterator[None]:
    """Convert all errors that Pillow and zipfile raise for a broken file to `UnreadableImageError`."""
    image_module, _ = pillow()
    # Pillow's decoders raise these for a truncated file or invalid numbers.
    broken = (OSError, SyntaxError, ValueError, EOFError, ArithmeticError, LookupError, TypeError)
    try:
        yield
    except (UnreadableImageError, NotInstalledError):
        raise
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        maximum = f"{MAX_PIXELS // 10**6} million"
        raise UnreadableImageError(f"it has more than {maximum} pixels, which are the most") from error
    except image_module.UnidentifiedImageError as error:
        raise UnreadableImageError("it is not an image, or of a kind that is not read here") from error
    except (*broken, *PACKED, AttributeError, RecursionError) as error:
        raise UnreadableImageError(f"it cannot be decoded ({str(error)[:MAX_REASON]})") from error
