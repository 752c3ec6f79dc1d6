"""QR code encoder (versions 1 to 10, error correction level M)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

Grid = list[list[bool]]

# Per version from 1: error correction bytes per block, number of blocks, centers of alignment patterns.
_VERSIONS: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (10, 1, ()),
    (16, 1, (6, 18)),
    (26, 1, (6, 22)),
    (18, 2, (6, 26)),
    (24, 2, (6, 30)),
    (16, 4, (6, 34)),
    (18, 4, (6, 22, 38)),
    (22, 4, (6, 24, 42)),
    (22, 5, (6, 26, 46)),
    (26, 5, (6, 28, 50)),
)
_MASKS: tuple[Callable[[int, int], int], ...] = (
    lambda x, y: (x + y) % 2,
    lambda _, y: y % 2,
    lambda x, _: x % 3,
    lambda x, y: (x + y) % 3,
    lambda x, y: (x // 3 + y // 2) % 2,
    lambda x, y: x * y % 2 + x * y % 3,
    lambda x, y: (x * y % 2 + x * y % 3) % 2,
    lambda x, y: ((x + y) % 2 + x * y % 3) % 2,
)
_FINDER_LIKE = (True, False, True, True, True, False, True, False, False, False, False)
_FINDER_LIKES = (_FINDER_LIKE, _FINDER_LIKE[::-1])


def encode(text: str) -> Grid:
    """Encode a text. Return rows of modules, True for dark ones, without the quiet zone of 4 modules.

    Raises:
        ValueError: if the text is longer than 213 bytes.
    """
    data = text.encode()
    version = next((number for number in range(1, 11) if _fits(len(data), number)), None)
    if version is None:
        raise ValueError(f"the address has {len(data)} bytes, but allowed is: at most 213")
    bits = _interleaved(_codewords(data, version), version)
    return min((_drawn(bits, version, mask) for mask in range(8)), key=_penalty)


def _num_modules(version: int) -> int:
    """Return the number of modules for data and error correction."""
    total = (16 * version + 128) * version + 64
    if version >= 2:
        num_align = version // 7 + 2
        total -= (25 * num_align - 10) * num_align - 55
    return total - 36 if version >= 7 else total


def _num_data(version: int) -> int:
    per_block, num_blocks, _ = _VERSIONS[version - 1]
    return _num_modules(version) // 8 - per_block * num_blocks


def _fits(num_bytes: int, version: int) -> bool:
    return num_bytes + (2 if version < 10 else 3) <= _num_data(version)


def _codewords(data: bytes, version: int) -> bytes:
    """Return mode, length and data, padded to the version's capacity."""
    length_bits = 8 if version < 10 else 16
    value = (0b0100 << length_bits | len(data)) << 8 * len(data) | int.from_bytes(data)
    # The four bits of the terminator complete the last byte.
    begun = (value << 4).to_bytes((8 + length_bits + 8 * len(data)) // 8)
    pad = b"\xec\x11" * _num_data(version)
    return (begun + pad)[: _num_data(version)]


def _times(one: int, other: int) -> int:
    """Return a product in GF(256)."""
    product = 0
    for bit in reversed(range(8)):
        product = product << 1 ^ (product >> 7) * 0x11D
        product ^= (other >> bit & 1) * one
    return product


def _divisor(degree: int) -> list[int]:
    found, root = [0] * (degree - 1) + [1], 1
    for _ in range(degree):
        found = [_times(each, root) ^ after for each, after in zip(found, [*found[1:], 0], strict=True)]
        root = _times(root, 2)
    return found


def _correction(data: bytes, divisor: list[int]) -> list[int]:
    rest = [0] * len(divisor)
    for byte in data:
        factor = byte ^ rest[0]
        rest = [each ^ _times(part, factor) for each, part in zip([*rest[1:], 0], divisor, strict=True)]
    return rest


def _interleaved(data: bytes, version: int) -> list[bool]:
    """Return the bits of all data and error correction blocks, interleaved byte by byte."""
    per_block, num_blocks, _ = _VERSIONS[version - 1]
    short, num_long = divmod(len(data), num_blocks)
    blocks, begin = list[bytes](), 0
    for number in range(num_blocks):
        end = begin + short + (number >= num_blocks - num_long)
        blocks.append(data[begin:end])
        begin = end
    divisor = _divisor(per_block)
    corrections = [_correction(block, divisor) for block in blocks]
    sent = [block[place] for place in range(short + 1) for block in blocks if place < len(block)]
    sent += [each[place] for place in range(per_block) for each in corrections]
    return [bool(byte >> bit & 1) for byte in sent for bit in reversed(range(8))]


class _Drawing:
    """The modules of a code. Function patterns are fixed and never overwritten by data."""

    def __init__(self, version: int) -> None:
        self.size = 17 + 4 * version
        self.grid: Grid = [[False] * self.size for _ in range(self.size)]
        self._is_fixed: Grid = [[False] * self.size for _ in range(self.size)]
        for place in range(self.size):
            self._fix(6, place, place % 2 == 0)
            self._fix(place, 6, place % 2 == 0)
        last = self.size - 7
        for x, y in ((0, 0), (last, 0), (0, last)):
            self._draw_finder(x + 3, y + 3)
        places = _VERSIONS[version - 1][2]
        for x in places:
            for y in places:
                if (x, y) not in ((6, 6), (6, places[-1]), (places[-1], 6)):
                    self._draw_square(x, y, 2, lambda distance: distance != 1)
        self.draw_format(0)
        if version >= 7:
            self._draw_version(version)

    def _fix(self, x: int, y: int, is_dark: bool) -> None:
        self.grid[y][x] = is_dark
        self._is_fixed[y][x] = True

    def _draw_square(self, x: int, y: int, radius: int, is_dark: Callable[[int], bool]) -> None:
        for dx in range(-radius, radius + 1):
            for dy in range(-radius, radius + 1):
                if 0 <= x + dx < self.size and 0 <= y + dy < self.size:
                    self._fix(x + dx, y + dy, is_dark(max(abs(dx), abs(dy))))

    def _draw_finder(self, x: int, y: int) -> None:
        self._draw_square(x, y, 4, lambda distance: distance not in (2, 4))

    def draw_format(self, mask: int) -> None:
        """Write the format bits (level M and the mask) twice, with their error correction."""
        written = _with_remainder(mask, 10, 0x537) ^ 0x5412
        bits = [bool(written >> place & 1) for place in range(15)]
        for place, way in enumerate([*range(6), 7, 8]):
            self._fix(8, way, bits[place])
        for place, way in enumerate([7, *reversed(range(6))]):
            self._fix(way, 8, bits[8 + place])
        for place in range(8):
            self._fix(self.size - 1 - place, 8, bits[place])
        for place in range(8, 15):
            self._fix(8, self.size - 15 + place, bits[place])
        self._fix(8, self.size - 8, True)

    def _draw_version(self, version: int) -> None:
        bits = _with_remainder(version, 12, 0x1F25)
        for place in range(18):
            is_dark = bool(bits >> place & 1)
            far, near = self.size - 11 + place % 3, place // 3
            self._fix(far, near, is_dark)
            self._fix(near, far, is_dark)

    def free_places(self) -> Iterator[tuple[int, int]]:
        """Yield the data modules in zigzag order: pairs of columns, from the right, up and down."""
        for number, right in enumerate([*range(self.size - 1, 6, -2), 5, 3, 1]):
            rows = range(self.size)
            for y in rows if number % 2 else reversed(rows):
                for x in (right, right - 1):
                    if not self._is_fixed[y][x]:
                        yield x, y


def _with_remainder(value: int, num_bits: int, divisor: int) -> int:
    """Return a value followed by its remainder in a BCH code."""
    rest = value
    for _ in range(num_bits):
        rest = rest << 1 ^ (rest >> num_bits - 1) * divisor
    return value << num_bits | rest


def _drawn(bits: list[bool], version: int, mask: int) -> Grid:
    drawing = _Drawing(version)
    drawing.draw_format(mask)
    is_flipped = _MASKS[mask]
    for number, (x, y) in enumerate(drawing.free_places()):
        is_dark = number < len(bits) and bits[number]
        drawing.grid[y][x] = is_dark ^ (is_flipped(x, y) == 0)
    return drawing.grid


def _penalty(grid: Grid) -> int:
    """Return the penalty score of the standard's four rules; the mask with the lowest score is used."""
    columns = [list(column) for column in zip(*grid, strict=True)]
    lines = [*grid, *columns]
    runs = sum(len(run) - 2 for line in lines for run in _runs(line) if len(run) >= 5)
    squares = sum(
        row[x] == row[x + 1] == below[x] == below[x + 1]
        for row, below in itertools.pairwise(grid)
        for x in range(len(row) - 1)
    )
    finders = sum(tuple(line[x : x + 11]) in _FINDER_LIKES for line in lines for x in range(len(line) - 10))
    share_percent = 100 * sum(map(sum, grid)) / len(grid) ** 2
    return runs + 3 * squares + 40 * finders + 10 * int(abs(share_percent - 50) / 5)


def _runs(line: list[bool]) -> Iterator[list[bool]]:
    return (list(run) for _, run in itertools.groupby(line))
