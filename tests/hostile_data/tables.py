"""Tables and texts that are too wide, too long, unterminated or not tables; and unusual valid ones."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.hostile_data.attack import Attack, Maker, with_bytes

MEGA = 10**6
Parts = Callable[[], Iterable[str]]
ROWS = "".join(f"{n}.5,{'xy'[n % 2]}\n" for n in range(100))


def attacks() -> list[Attack]:
    """Return the attacks by tables and texts."""
    return [
        *(Attack(name=f"CSV: {name}", make=_written("data.csv", parts)) for name, parts in REFUSED.items()),
        *(
            Attack(name=f"CSV: {name}", make=_written("data.csv", parts), is_refused=False)
            for name, parts in READ.items()
        ),
        *(
            Attack(
                name=f"CSV: {code}",
                make=with_bytes("data.csv", ("caf\u00e9,b\n" + ROWS).encode(code)),
                is_refused=False,
            )
            for code in ("utf-16", "utf-16-le", "latin-1")
        ),
        Attack(
            name="CSV: a name with quotes and stars",
            make=with_bytes("*'); DROP TABLE rows; --[a].csv", ("a,b\n" + ROWS).encode()),
            is_refused=False,
        ),
        Attack(name="JSON Lines: a million brackets", make=with_bytes("d.jsonl", b'{"a":' + b"[" * MEGA)),
        Attack(name="JSON: no rows", make=with_bytes("d.json", b'{"a": 1}')),
        Attack(name="Excel: grows a thousandfold", make=_sheet_bomb),
        Attack(name="Excel: broken", make=with_bytes("d.xlsx", b"PK\x03\x04" + b"\xff" * 999)),
        Attack(name="CSV: random bytes", make=with_bytes("data.csv", os.urandom(10 * MEGA))),
        Attack(
            name="CSV: a line of 2 GB",
            make=_written("data.csv", lambda: ("a" * 2 * MEGA for _ in range(1000))),
        ),
        Attack(name="text: a line of 1 GB", make=_long_text, is_refused=False),
        Attack(name="text: only white space", make=with_bytes("d.txt", b" \t\r\n" * MEGA), is_refused=False),
        Attack(name="text: every character there is", make=with_bytes("d.txt", _everything())),
        Attack(name="text: zeros", make=with_bytes("d.txt", bytes(MEGA))),
        Attack(name="Parquet: broken", make=with_bytes("d.parquet", b"PAR1" + b"\xff" * 99 + b"PAR1")),
    ]


def _mixed() -> Iterable[str]:
    yield "day,size,label\r\n"
    for n in range(100):
        yield f"2026-01-{n % 28 + 1:02},{n / 7},{'xy'[n % 2]}" + ("\r\n" if n % 3 else "\n")


REFUSED: dict[str, Parts] = {
    "10 million columns": lambda: ("a," * 10 * MEGA, "b\n", ROWS),
    "a million columns, 2 rows": lambda: (
        ",".join(f"c{n}" for n in range(MEGA)) + "\n",
        ("1," * MEGA)[:-1] + "\n",
    ),
    "a quote that is never closed, 200 MB": lambda: ("a,b\n", '"', *[ROWS * 2000] * 150),
    "a row held together by quotes, 200 MB": lambda: ("a,b\n", *['"x\n",' * MEGA] * 35),
    "a stray quote in each of 500,000 rows": lambda: (
        "a,b,label\n",
        *(f'{n},"{n % 7}.5,{"xy"[n % 2]}\n' for n in range(500_000)),
    ),
    "zero bytes": lambda: ("a,b\n", ROWS, "\0\0,x\n"),
    "labels of 1 MB": lambda: ("a,label\n", *(f"{n / 7},{'xy'[n % 2] * 900_000}\n" for n in range(100))),
    "1e999, nan, inf, 0x10, \uff11\uff12\uff13": lambda: (
        "a,label\n",
        ROWS,
        "1e999,x\n-inf,y\n0x10,x\n\uff11\uff12\uff13,y\n",
    ),
    "nothing but white space": lambda: (" \n" * MEGA,),
    "every cell another text, as label": lambda: ("a,label\n", *(f"{n},text {n}\n" for n in range(200_000))),
}
READ: dict[str, Parts] = {
    "200 rows of 1 MB cells": lambda: (
        "text,label\n",
        *(f"word{n} " * 100_000 + f",{'xy'[n % 2]}\n" for n in range(200)),
    ),
    "200 MB": lambda: (
        "a,b,c,d,label\n",
        *(f"{n / 7},{n % 9}.5,{n * 7919 % 10007},n{n % 40}x,{'xy'[n % 2]}\n" for n in range(5 * MEGA)),
    ),
    "10,000 columns": lambda: (
        ",".join([*(f"c{n}" for n in range(9_999)), "label"]) + "\n",
        *(
            ",".join([*(f"{(n * 7 + c) % 13}.5" for c in range(9_999)), "xy"[n % 2]]) + "\n"
            for n in range(50)
        ),
    ),
    "3 million categories": lambda: (
        "a,b,label\n",
        *(f"n{n}x,{n % 9}.5,{'xy'[n % 2]}\n" for n in range(3 * MEGA)),
    ),
    "columns without names": lambda: (",,label\n", *(f"{n / 7},{n % 5},{'xy'[n % 2]}\n" for n in range(100))),
    "column of 1 MB name": lambda: ("a" * MEGA + ",b,c\n", ROWS),
    "columns of the same name": lambda: ("a,a\n", ROWS),
    "line ends of an old Mac": lambda: ("a,b\r" + ROWS.replace("\n", "\r"),),
    "SQL": lambda: (
        'a,"x\'); DROP TABLE rows; --",label\n',
        *(f"{n / 7},'); DROP TABLE rows; --{n % 3},it's {'xy'[n % 2]}\n" for n in range(100)),
    ),
    "formulas": lambda: (
        "a,b,label\n",
        *(f"=cmd|' /C calc'!A{n % 3},{n / 7},{'xy'[n % 2]}\n" for n in range(100)),
    ),
    "dates and mixed line ends": lambda: (*_mixed(),),
}


def _written(name: str, parts: Parts) -> Maker:
    def make(folder: Path) -> Path:
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            file.writelines(parts())
        return folder / name

    return make


def _sheet_bomb(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "d.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as sheet:
            for _ in range(1000):
                sheet.write(b" " * MEGA)
    return folder / "d.xlsx"


def _long_text(folder: Path) -> Path:
    piece = "To be, or not to be, that is the question. " * 20_000
    return _written("data.txt", lambda: (piece for _ in range(1200)))(folder)


def _everything() -> bytes:
    return "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x110000)])).encode()
