"""Variants of texts and paths: how each is read, and which messages are shown."""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.own_files import inspected
from tests.unit.trainers.data.own.test_people_files import said
from trainers.data.dataset import DataOptions
from trainers.data.own.recognise import data_path
from trainers.files.plain_files import REPOSITORY


def lines(words: str, count: int = 60) -> str:
    return "".join(f"{words} {n * n}\n" for n in range(count))


GERMAN, RUSSIAN = "Füße grüßen über die Straße und André sagt", "Это был длинный и тёплый день"
CHINESE, JAPANESE = "这个屏幕不错我买了很好看", "これはとても長い一日でした"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A text file; `text` is None if it is rejected, and without `told` no message is allowed."""

    content: bytes
    text: str | None
    told: tuple[str, ...] = ()
    name: str = "t.txt"


def coded(words: str, code: str, *told: str) -> Case:
    return Case(content=lines(words).encode(code), text=lines(words), told=told)


PLAIN = lines("some words of a text")
PROSE = "".join(
    f"First{', then' * (n % 3)} we go home{', or not' * (n % 2)} {n * n} times.\n" for n in range(60)
)
GUTENBERG = "The Project Gutenberg eBook of Emma\n\n" + PLAIN
CASES = {
    "UTF-8": coded(GERMAN, "utf-8"),
    "UTF-16 with a mark": coded(GERMAN, "utf-16", "UTF-16"),
    "UTF-16 little endian": coded(GERMAN, "utf-16-le", "UTF-16-LE"),
    "UTF-16 big endian": coded(GERMAN, "utf-16-be", "UTF-16-BE"),
    "UTF-32 with a mark": coded(GERMAN, "utf-32", "UTF-32"),
    "cp1252": coded(GERMAN, "cp1252", "cp1252"),
    "cp850": coded(GERMAN, "cp850", "cp850"),
    "Mac Roman": coded(GERMAN, "mac_roman", "mac_roman"),
    "cp1251": coded(RUSSIAN, "cp1251", "cp1251"),
    "KOI8-R": coded(RUSSIAN, "koi8_r", "koi8_r"),
    "GBK": coded(CHINESE, "gbk", "gb18030"),
    "Shift-JIS": coded(JAPANESE, "shift_jis", "shift_jis"),
    "EUC-JP": coded(JAPANESE, "euc_jp", "euc_jp"),
    "a few broken bytes": Case(
        content=lines(GERMAN).encode() + b"x\xff\n",
        text=lines(GERMAN) + "x�\n",
        told=("1 bytes are not UTF-8",),
    ),
    "line ends of an old Mac": Case(content=PLAIN.replace("\n", "\r").encode(), text=PLAIN, told=("CR",)),
    "marks in the middle": Case(
        content=codecs.BOM_UTF8 + PLAIN.encode() + codecs.BOM_UTF8 + lines("more words").encode(),
        text=PLAIN + lines("more words"),
    ),
    "one line": Case(content=b"abcdefg " * 100, text="abcdefg " * 100),
    "Markdown with a table": Case(content=lines("| a | b |").encode(), text=lines("| a | b |"), name="t.md"),
    "commas in prose": Case(content=PROSE.encode(), text=PROSE),
    "Gutenberg": Case(content=GUTENBERG.encode(), text=GUTENBERG, told=("licence of Project Gutenberg",)),
    "the same text twice": Case(
        content=2 * PLAIN.encode(), text=2 * PLAIN, told=("lines at its end", "are also in the training text")
    ),
    "sentences again at the end": Case(
        content=((lines(CHINESE).replace("\n", "。") * 2).encode()),
        text=lines(CHINESE).replace("\n", "。") * 2,
        told=("are also in the training text",),
    ),
    "one letter": Case(content=b"a" * 1000, text=None, told=("of the character 'a' only",)),
    "one letter in each line": Case(content=b"a\n" * 999, text=None, told=("of the character 'a' only",)),
    "line ends": Case(content=b"\n" * 999, text=None, told=("of white space only",)),
    "too short": Case(content=b"short text", text=None, told=("the text has 10 characters",)),
    "empty": Case(content=b"", text=None, told=("the file is empty",)),
    "zero bytes": Case(content=b"text " * 900 + b"\0", text=None, told=("zero bytes",)),
    "a program of bytes": Case(content=b"\x7fELF\0\1\2" + bytes(range(200)), text=None, told=("kind",)),
    "PDF": Case(content=b"%PDF-1.4", text=None, told=("Save its text as a .txt file",), name="t.pdf"),
    "PDF without suffix": Case(content=b"%PDF-1.4\n" + PLAIN.encode(), text=None, told=("a PDF",)),
    "RTF": Case(content=rb"{\rtf1 " + PLAIN.encode(), text=None, told=("an RTF document", "as a .txt file")),
    "JSON lines": Case(content=b'{"text": "a"}\n' * 90, text=None, told=("there is one column only",)),
    "words with tags": Case(
        content=b"EU NNP B-ORG\nrejects VBZ O\ncall NN O\n\n" * 30, text=None, told=("a CoNLL file",)
    ),
    "tar": Case(content=bytes(257) + b"ustar" + bytes(250), text=None, told=("a tar archive", "Unpack it")),
    "cut off while compressed": Case(
        content=gzip.compress(PLAIN.encode())[:50], text=None, told=("cannot be unpacked",), name="t.txt.gz"
    ),
    "compressed": Case(content=gzip.compress(PLAIN.encode()), text=PLAIN, name="t.txt.gz"),
    "web page": Case(content=b"<html>" + PLAIN.encode(), text="<html>" + PLAIN, name="t.html"),
    "web page called a text": Case(
        content=b"<!DOCTYPE html>" + PLAIN.encode(),
        text="<!DOCTYPE html>" + PLAIN,
        told=("the tags of a web page are part of the text",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_texts_are_read_as_an_analyst_reads_them(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = tmp_path / case.name
    path.write_bytes(case.content)
    answer = inspected(path)
    told = said(answer)
    assert answer["ok"] is (case.text is not None), told
    assert (answer["num_problems"] == 0) is (not case.told), told
    for words in case.told:
        assert words in told
    if case.text is not None:
        assert answer["task"] == "language_modelling"
        assert answer["preview"]["text"] == case.text[:400]
        assert answer["preview"]["num_characters"] == len(case.text)


@pytest.mark.parametrize("encoding", ["hex", "no-such", "rot13"])
def test_an_encoding_must_be_one_of_texts(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "t.txt").write_text(PLAIN)
    answer = inspected(tmp_path / "t.txt", reading=f'{{"encoding": "{encoding}"}}')
    assert not answer["ok"] and f"there is no encoding '{encoding}'" in said(answer)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("{} How do they go home {}", ("DESC:manner", "NUM:count")),
        ("{} a fine and quiet film of {} years", ("0", "1")),
        ("The rates of year {1} rise, as it was said .@{0}", ("negative", "positive")),
    ],
)
def test_lines_that_begin_or_end_with_their_label(tmp_path: Path, line: str, names: tuple[str, str]) -> None:
    (tmp_path / "t.txt").write_text("".join(line.format(names[n % 2], n * n) + "\n" for n in range(60)))
    answer = inspected(tmp_path / "t.txt")
    assert answer["task"] == "text_classification", said(answer)
    assert answer["preview"]["class_counts"] == dict.fromkeys(names, 30)


LIST = "".join(f"photos/{n}.jpg {n % 2}\n" for n in range(30))
TABLE = "a,b,label\n" + "".join(f"{n},{n * n % 7},{'xy'[n % 2]}\n" for n in range(40))
FOLDERS: dict[str, tuple[dict[str, str], str, str]] = {
    "training texts": ({"test.txt": PLAIN, "train.txt": PLAIN, "valid.txt": PLAIN}, "", "train.txt"),
    "a text of each class": ({"neg.txt": PLAIN, "pos.txt": PLAIN}, "", "neg.txt"),
    "tables in folders": ({"a/x.csv": TABLE, "b/y.csv": TABLE}, "", "a/x.csv"),
    "a text": ({"README.md": PLAIN, "book.txt": PLAIN}, "language_modelling", ""),
    "a table and a text": ({"README.md": PLAIN, "data.csv": TABLE}, "tabular_classification", ""),
    "a table for training": ({"test.csv": TABLE, "train.csv": TABLE}, "tabular_classification", ""),
    "a list of images": ({"labels.txt": LIST}, "", ""),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_only_file_of_a_folder_is_read_and_else_one_is_offered(tmp_path: Path, name: str) -> None:
    files, task, offered = FOLDERS[name]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    answer = inspected(tmp_path)
    assert answer["ok"] is bool(task) and (answer["task"] or "") == task, said(answer)
    suggested = [problem["suggested"] for problem in answer["problems"] if problem["suggested"]]
    assert suggested == ([{"data_path": str(tmp_path / offered)}] if offered else []), said(answer)
    assert name != "a list of images" or "the cells are names of image files" in said(answer)


PATHS: dict[str, Callable[[Path], str]] = {
    "plain": str,
    "single quotes": lambda path: f"'{path}'",
    "typographic quotes": lambda path: f"“{path}”",
    "backticks": lambda path: f"`{path}`",
    "address": lambda path: f"file://{path}",
    "address of this host": lambda path: f"file://localhost{path}",
    "address with codes": lambda path: path.as_uri(),
    "quoted address": lambda path: f"'{path.as_uri()}'",
    "address with one slash": lambda path: f"file:{path}",
    "quotes in quotes": lambda path: f"\"'{path}'\"",
    "angle brackets": lambda path: f"<{path}>",
    "invisible marks around": lambda path: f"\u202a{path}\u200b",
    "variable": lambda path: f"$HOME/{path.relative_to(path.home())}",
    "home": lambda path: f"~/{path.relative_to(path.home())}",
    "double slash": lambda path: str(path).replace("/", "//"),
    "slash at the end": lambda path: f"{path}/",
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "my data" / "Größe 100%.txt"
    path.parent.mkdir()
    path.write_text(PLAIN)
    assert data_path(DataOptions(path=PATHS[name](path))).samefile(path)


@pytest.mark.parametrize(
    "path",
    [
        "READMEE.md",
        "benchmark",
        str(REPOSITORY) + "x",
        str(REPOSITORY.parent / (REPOSITORY.name + "s") / "a.csv"),
    ],
)
def test_nothing_of_the_program_is_suggested(path: str) -> None:
    [problem] = inspected(Path(path))["problems"]
    suggested = problem["suggested"].get("data_path", "")
    assert not Path(suggested).is_relative_to(REPOSITORY) or not suggested, problem


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (r"C:\Users\me\data.csv", "a path of Windows"),
        (r"\\server\share\data.csv", "a path of Windows"),
        ("https://example.com/data.csv", "an address on the network"),
        (".", "this program is in it"),
        ("/", "this program is in it"),
    ],
)
def test_what_is_no_path_of_data_here_is_named(path: str, words: str) -> None:
    assert words in said(inspected(Path(path)))
