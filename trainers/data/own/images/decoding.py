"""Decodes images, each to the one shape that all of a data set get; one gateway to Pillow."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import statistics
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from trainers.data.dataset import NotInstalledError

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "AVIF", "HEIF")  # nothing that runs a program
HEIF_REQUIREMENT = "pillow-heif==1.8.1"
HEIF_SUFFIXES = (".heic", ".heif")
MAX_PIXELS = 80_000_000
LARGE_PIXELS = 16_000_000
MAX_SCANS = 500  # of a progressive JPEG; each goes over all pixels, and takes a few bytes
MAX_REASON = 200
SMALL_SIDE = 64
LARGE_SIDE = 128
SMALLEST_SIDE = 4
MAX_ASPECT = 2.0
DEEP_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # more than 8 bits of grey
GREY_MODES = ("1", "L", "LA", *DEEP_MODES)
DEPTHS = (8, 10, 12, 14, 16, 24, 32)
COLOUR_MODES = ("P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "PA", "La", "RGBa", "HSV", "LAB")
ORIENTATION = 0x0112  # the EXIF tag
LYING = (5, 6, 7, 8)  # orientations that turn the image by a quarter

Pixels = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.int64]

Shape = tuple[int, int, int]  # channels, height, width

# Two that are large at once could be more than the memory: of this process and those it forks.
_one_large_image = multiprocessing.get_context("fork").Lock()


class UnreadableImageError(ValueError):
    """An image that cannot be decoded; says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What an image says of itself, upright."""

    width: int
    height: int
    is_grey: bool
    is_deep: bool = False


@functools.cache
def pillow() -> tuple[ModuleType, ModuleType]:
    """Import Pillow's Image and ImageOps.

    Raises:
        NotInstalledError: with the command that brings it.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise NotInstalledError(
            f"Images need Pillow, which cannot be used here ({error}): pip install pillow"
        ) from error
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    Image.init()  # all formats' readers; only those in FORMATS are used
    # Checked by Pillow wherever it makes room for pixels; beyond twice as many it raises by itself.
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    return Image, ImageOps


def require_heif(names: Sequence[str]) -> None:
    """Check that HEIC images can be read, if there are any.

    Raises:
        NotInstalledError: naming the package.
    """
    image_module, _ = pillow()
    if "HEIF" not in image_module.OPEN and any(name.lower().endswith(HEIF_SUFFIXES) for name in names):
        message = f"HEIC images need pillow-heif: pip install {HEIF_REQUIREMENT}. Or save them as JPEG."
        raise NotInstalledError(message, requirement=HEIF_REQUIREMENT)


def read_header(file: BinaryIO) -> Header:
    """Read size and mode without decoding.

    Raises:
        UnreadableImageError: when that cannot be done or should not be gone on with.
    """
    with file, told(), _open(file) as image:
        width, height = image.size
        # Of a PNG that does not say it at its start, Pillow would decode the whole image to find it.
        may_lie = image.format != "PNG" or "exif" in image.info
        if may_lie and image.getexif().get(ORIENTATION) in LYING:
            width, height = height, width
        return Header(
            width=width, height=height, is_grey=image.mode in GREY_MODES, is_deep=image.mode in DEEP_MODES
        )


def highest(file: BinaryIO) -> float:
    """Return the highest value of an image of more than 8 bits.

    Raises:
        UnreadableImageError: when the image is broken.
    """
    with file, told(), _open(file) as image:
        return float(np.nan_to_num(np.asarray(image)).max())


def white_of(highest_value: float) -> float:
    """Return the value that becomes 255: the highest of the number of bits that a data set uses."""
    if highest_value <= 1:
        return 1.0
    return next((2.0**bits - 1 for bits in DEPTHS if highest_value < 2**bits), highest_value)


def decode(file: BinaryIO, shape: Shape, white: float = 65535.0) -> Pixels:
    """Return (channels, height, width) bytes: upright, scaled to cover the shape, the centre cut out.

    Args:
        white: the value of more than 8 bits that becomes 255.

    Raises:
        UnreadableImageError: when the image is broken.
    """
    with file, told(), _open(file) as image:
        if "progressive" in image.info:
            _check_scans(file)
        if image.width * image.height > LARGE_PIXELS:
            with _one_large_image:
                return _fitted(image, shape, white)
        return _fitted(image, shape, white)


def choose_shape(headers: Sequence[Header]) -> Shape:
    """Return the (channels, height, width) all images are brought to.

    The short side is the median one, at most 64 pixels, or 128 where the median is 128 or more. Images
    that are all of one format keep it, up to 2:1; others become squares.
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


def _open(file: BinaryIO) -> PilImage:
    image_module, _ = pillow()
    # Pillow raises a KeyError for a format that it was built without.
    formats = [name for name in FORMATS if name in image_module.OPEN]
    image: PilImage = image_module.open(file, formats=formats)
    width, height = image.size
    if not width * height:
        raise UnreadableImageError(f"it is {width:,} × {height:,} pixels, so there is nothing in it")
    if width * height > MAX_PIXELS:
        millions = width * height / 1e6
        raise UnreadableImageError(
            f"it is {width:,} × {height:,} pixels, {millions:,.0f} million; at most "
            f"{MAX_PIXELS // 10**6} million are read"
        )
    if image.mode not in (*GREY_MODES, *COLOUR_MODES):
        raise UnreadableImageError(f"its pixels are of the kind {image.mode}, not bytes of grey or colour")
    return image


def _check_scans(file: BinaryIO) -> None:
    place = file.tell()
    file.seek(0)
    num_scans = 0
    while piece := file.read(2**20):
        num_scans += piece.count(b"\xff\xda")  # a start of scan; cannot occur within the pixels' bytes
    file.seek(place)
    if num_scans > MAX_SCANS:
        raise UnreadableImageError(f"it is stored in {num_scans:,} passes; {MAX_SCANS} are the most")


def _fitted(image: PilImage, shape: Shape, white: float) -> Pixels:
    image_module, operations = pillow()
    channels, height, width = shape
    # A JPEG can be decoded at a half, a quarter or an eighth of its size, which is much faster.
    longest = max(height, width)
    image.draft(None, (longest, longest))
    operations.exif_transpose(image, in_place=True)
    image = _in_mode(image, "L" if channels == 1 else "RGB", white)
    image = operations.fit(image, (width, height), method=image_module.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _in_mode(image: PilImage, mode: str, white: float) -> PilImage:
    """Convert an image; transparent areas become white, and more than 8 bits of grey become 8."""
    image_module, _ = pillow()
    if image.mode in DEEP_MODES:
        values = np.nan_to_num(np.asarray(image).astype(np.float32)) * (255.0 / white)
        image = image_module.fromarray(values.clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        white = image_module.new("RGBA", image.size, (255, 255, 255, 255))
        image = image_module.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == mode else image.convert(mode)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn whatever Pillow raises about a broken file into one kind of error."""
    image_module, _ = pillow()
    # Pillow's decoders let these through when a file is cut off or its numbers make no sense.
    broken = (OSError, SyntaxError, ValueError, EOFError, ArithmeticError, LookupError, TypeError)
    packed = (struct.error, zlib.error, zipfile.BadZipFile, NotImplementedError)
    try:
        yield
    except UnreadableImageError:
        raise
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        most = f"{MAX_PIXELS // 10**6} million"
        raise UnreadableImageError(f"it has more than {most} pixels, which are the most") from error
    except image_module.UnidentifiedImageError as error:
        raise UnreadableImageError("it is not an image, or of a kind that is not read here") from error
    except (*broken, *packed, AttributeError, RecursionError) as error:
        raise UnreadableImageError(f"it cannot be decoded ({str(error)[:MAX_REASON]})") from error


def sums_of(pixels: Pixels) -> Sums:
    """Return (images, 2, channels): of each image and channel the sum of its bytes and of their squares."""
    # A byte's square has 16 bits; of the largest shape, 128 x 256 pixels, their sum has 32.
    squares = np.square(pixels, dtype=np.uint16)
    both = (pixels.sum(axis=(2, 3), dtype=np.uint32), squares.sum(axis=(2, 3), dtype=np.uint32))
    return np.stack(both, axis=1).astype(np.int64)


def mean_and_std(sums: Sums, shape: Shape) -> tuple[list[float], list[float]]:
    """Return each channel's mean and deviation over some images; a deviation is at least 1."""
    total = len(sums) * shape[1] * shape[2]
    mean, mean_square = sums.sum(axis=0) / total
    return mean.tolist(), np.sqrt(np.maximum(mean_square - mean**2, 1.0)).tolist()
