"""QR codes, decoded by the standard's rules; another program's code for the same address is identical."""

from __future__ import annotations

import pytest

from ddp_gui.learn import qr

pytestmark = pytest.mark.unit

ADDRESS = "http://192.168.1.20:7860/poll?id=k3m9x2ab"
# zxing-cpp 3.1.1 decodes this to ADDRESS.
KNOWN = """\
#######..#.####....#..#######
#.....#..#.#...###....#.....#
#.###.#.#####.###.#...#.###.#
#.###.#.#.#..##..####.#.###.#
#.###.#.##.####.#..#..#.###.#
#.....#.#.#.#..##.#.#.#.....#
#######.#.#.#.#.#.#.#.#######
........#.###.....###........
#.#####..#.###.####.#.#####..
##..#...##..#.#..###..#.#...#
#.#.###..#...#.###.....##....
.##..#..###........#.##.#..#.
..#...###....##..#.###.#.##..
#.##.#.##.#.....#..#..#.#.#.#
...####.#.###..##.#..##...#..
#.##....#.#...###.#..#.#...#.
.#.####.#....##.##..##....#..
###.#..##.#.#....###.##.###.#
#..#..####.###.#.#....#..##..
#....#.#.#.##..##..#.##.#..#.
#.#####........#.#..#####.###
........###.##..#####...#####
#######..##.#####..##.#.###..
#.....#.##...#.#..#.#...#....
#.###.#.#...#.#..#..#########
#.###.#.###.##..###.##.#...##
#.###.#.###.##.##..##.#.##.#.
#.....#..#...#..#.#.##.##..#.
#######.##.#.#..###......##.."""


def shown(grid: qr.Grid) -> str:
    return "\n".join("".join("#" if is_dark else "." for is_dark in row) for row in grid)


def test_a_code_is_the_known_one() -> None:
    assert shown(qr.encode(ADDRESS)) == KNOWN


@pytest.mark.parametrize("length", [1, 14, 15, 62, 63, 106, 107, 122, 180, 181, 213])
def test_what_is_read_back_is_the_text(length: int) -> None:
    text = (ADDRESS * 6)[:length]
    grid = qr.encode(text)
    version = (len(grid) - 17) // 4
    assert read_back(grid, version) == text


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="214 bytes, but allowed is: at most 213"):
        qr.encode("a" * 214)


def read_back(grid: qr.Grid, version: int) -> str:
    """Return the text of a code: unmask it, undo the interleaving, verify each block's error correction."""
    written = sum(grid[row][8] << place for place, row in enumerate([*range(6), 7, 8]))
    written |= sum(grid[8][column] << 8 + place for place, column in enumerate([7, *reversed(range(6))]))
    mask = (written ^ 0x5412) >> 10
    assert mask < 8, "level M has the bits 00"
    places = qr._Drawing(version).free_places()
    bits = [grid[y][x] ^ (qr._MASKS[mask](x, y) == 0) for x, y in places]
    sent = [int("".join("01"[bit] for bit in bits[at : at + 8]), 2) for at in range(0, len(bits) - 7, 8)]
    per_block, num_blocks, _ = qr._VERSIONS[version - 1]
    num_data = qr._num_data(version)
    lengths = [(num_data + number) // num_blocks for number in range(num_blocks)]
    blocks: list[list[int]] = [[] for _ in lengths]
    taken = iter(sent)
    for place in range(max(lengths)):
        for block, length in zip(blocks, lengths, strict=True):
            if place < length:
                block.append(next(taken))
    corrections = [[next(taken) for _ in blocks] for _ in range(per_block)]
    for number, block in enumerate(blocks):
        whole = [*block, *(row[number] for row in corrections)]
        # A block with its error correction is zero at each root of the divisor.
        for power in range(per_block):
            assert value_at(whole, power) == 0
    value = int.from_bytes(bytes(byte for block in blocks for byte in block))
    num_bits = 8 * num_data
    assert value >> num_bits - 4 == 0b0100
    length_bits = 8 if version < 10 else 16
    num_bytes = value >> num_bits - 4 - length_bits & (1 << length_bits) - 1
    rest = num_bits - 4 - length_bits - 8 * num_bytes
    return (value >> rest & (1 << 8 * num_bytes) - 1).to_bytes(num_bytes).decode()


def value_at(coefficients: list[int], power: int) -> int:
    root = 1
    for _ in range(power):
        root = qr._times(root, 2)
    found = 0
    for each in coefficients:
        found = qr._times(found, root) ^ each
    return found
