"""Detects the encoding of texts and file names, and reads texts piece by piece."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.data.dataset import NotInstalledError
from trainers.data.own import processes

CHUNK_BYTES = 4 * 2**20
GUESSED_FROM_BYTES = 2**16
MARKS = {  # byte order marks, longest first: UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
# (encoding, non-ASCII letters of each language written in it). The first of equally good encodings is chosen.
LETTERS = (
    ("cp1252", "äöüß éèêëàâîïôûùçœæ áíóúñü ãõçáéíóúâêôà åäöéü åæøé éëïóíáèü þæðéíóúýáö àèéìòù"),
    ("cp1250", "ąćęłńóśźż áčďéěíňóřšťúůýž áäčďéíĺľňóôŕšťúýž áéíóöőúüű čćđšž ăâîşţ"),
    ("cp1254", "çğıöşüâîû"),
    ("cp1257", "āčēģīķļņšūž ąčęėįšųūž"),
    ("iso8859_2", "ąćęłńóśźż áčďéěíňóřšťúůýž áéíóöőúüű"),
    ("mac_roman", "äöüß éèêëàâîïôûùçœæ áíóúñü"),
    ("cp850", "äöüß éèêëàâîïôûùçæ áíóúñü åäöéü"),
    ("cp1251", "абвгдежзийклмнопрстуфхцчшщъыьэюяё абвгґдеєжзиіїйклмнопрстуфхцчшщьюя"),
    ("koi8_r", "абвгдежзийклмнопрстуфхцчшщъыьэюяё"),
    ("cp866", "абвгдежзийклмнопрстуфхцчшщъыьэюяё"),
    ("cp1253", "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋ"),
    ("cp1255", "אבגדהוזחטיךכלםמןנסעףפץצקרשת"),
    ("cp1256", "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي"),
)
# Byte ranges of common characters in multi-byte encodings.
USUAL = {
    "euc_kr": rb"[\xb0-\xc8][\xa1-\xfe]",
    "shift_jis": rb"\x82[\x9f-\xf1]|\x83[\x40-\x96]|[\x88-\x97][\x40-\xfc]",
    "euc_jp": rb"[\xa4\xa5][\xa1-\xf6]|[\xb0-\xcf][\xa1-\xfe]",
    "gb18030": rb"[\xb0-\xd7][\xa1-\xfe]",
    "big5": rb"[\xa4-\xc6][\x40-\x7e\xa1-\xfe]",
}
FITS = 0.75
OTHER_HINT = "Save it as UTF-8, or name its encoding."
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
# Candidate Latin code pages for file names in zips.
LATIN = ("cp1252", "cp1250", "mac_roman", "cp850", "cp1254")
_HIGH, _ALONE = re.compile(rb"[\x80-\xff]"), re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
# A symbol or a capital within a word, as in a text decoded with the wrong code page.
_ODD = re.compile(
    r"(?<=[^\W\d_])[^\x00-\x7f\w’–«»\s](?=[^\W\d_])|[a-zà-ÿ][À-ÞŠŽŒ]|[¹²³¿¯¥£Ÿ¢¼½¾](?=[^\W\d_])"
)
# Byte ranges of frequent characters. Latin letters are excluded: names in other scripts rarely contain them.
_NO_LETTERS = rb"[\x00-\x40\x5b-\x60\x7b-\x7f]|"
_FREQUENT = {
    name: re.compile(b"(?:" + _NO_LETTERS + frequent + b")+")
    for name, frequent in {
        "cp932": rb"[\x81-\x83\x88-\x97][\x40-\xfc]",
        # The bytes of Hangul are also frequent Chinese characters, so `guess_names` requires 5 of them.
        **{name: USUAL[name] for name in ("euc_kr", "gb18030", "big5")},
        "cp866": rb"[\x80-\xaf\xe0-\xf1]",
        "cp1251": rb"[\xa8\xb8\xc0-\xff]",
    }.items()
}
_LETTERS = re.compile(r"[^\W\d_]+")
_SIGNS = "€£¥°²³µªº–—‘’“”„…«»§·×±®©™½¼¾\xa0"
# Non-ASCII characters except signs, and signs next to letters, which indicate the wrong encoding.
_FOREIGN = re.compile(
    rf"[^\x00-\x7f{_SIGNS}]|(?<=[^\W\d_])[^\x00-\x7f\w’](?=[^\W\d_])|[¼½¾±×®©²³](?=[^\W\d_])"
)
_TITLE_CASE = re.compile(r"\b[А-ЯЁ][а-яё]")
# Hebrew in cp1255 has the bytes of these letters in cp1251, five of them at the end of words only.
_HEBREW_END, _NOT_HEBREW = re.compile(r"[а-я]+[кнпух]\b"), re.compile("[кнпух][а-яё]|[ыьэюя]")
_TWO_SCRIPTS = re.compile(r"[A-Za-z][^\W\d_a-zA-Z]|[^\W\d_a-zA-Z][A-Za-z]")


class ReadingError(ValueError):
    """A text file cannot be read. Has the reason, advice and the line."""

    def __init__(self, message: str, hint: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.line = line


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The encoding of a text; `note` is a sentence for the user, empty for valid UTF-8."""

    name: str
    note: str = ""


def find_encoding(path: Path, requested: str = "") -> Encoding:
    """Return a text's encoding: by its byte order mark, UTF-8 if the file is valid, else a guess.

    Raises:
        ReadingError: if it is not a text, or `requested` is not an encoding.
    """
    if requested:
        try:
            io.TextIOWrapper(io.BytesIO(), requested)  # rejects codecs that are not text encodings
            return Encoding(name=codecs.lookup(requested).name)
        except LookupError:
            raise ReadingError(
                f"there is no encoding '{requested[:40]}'.", "Use a name such as cp1252."
            ) from None
    with path.open("rb") as file:
        start = file.read(4096)
    for mark, name in MARKS.items():
        if start.startswith(mark):
            note = "" if name == "utf-8-sig" else f"its encoding is {name.upper()}, by the mark at its start."
            return Encoding(name=name, note=note)
    zeros = start.count(0)
    if zeros > 0.2 * len(start):
        order = "utf-16-be" if start[::2].count(0) > zeros / 2 else "utf-16-le"
        return Encoding(name=order, note=f"its encoding is {order.upper()}: every second byte is zero.")
    if zeros:
        raise ReadingError("it is not a text file: it contains zero bytes.", "Give a text or a table.", 1)
    decoder, others = codecs.getincrementaldecoder("utf-8")(), b""
    num_valid = num_invalid = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            processes.check_time()
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                decoder.reset()
                high, multibyte = len(re.findall(rb"[\x80-\xff]", chunk)), b"".join(_MULTIBYTE.findall(chunk))
                num_valid, num_invalid = num_valid + len(multibyte), num_invalid + high - len(multibyte)
                lines = [line for line in chunk.split(b"\n") if not line.isascii()]
                others = (others + b"\n".join(lines))[:GUESSED_FROM_BYTES]
    if num_invalid <= 6 and not others:  # the file may be truncated within a character
        return Encoding(name="utf-8")
    if num_valid > 4 * num_invalid:
        return Encoding(name="utf-8", note=f"{num_invalid:,} bytes are not UTF-8; each is read as �.")
    name = guess(others)
    return Encoding(
        name=name,
        note=f"it is not UTF-8; its letters fit {name}. If they look wrong below, name the encoding.",
    )


def text_chunks(path: Path, encoding: Encoding, chunk_bytes: int = CHUNK_BYTES) -> Iterator[str]:
    r"""Yield a text in pieces of about `chunk_bytes`, with line ends \n and without byte order marks.

    Raises:
        ReadingError: if it cannot be decoded or contains NUL characters.
    """
    errors = "replace" if encoding.name == "utf-8" else "strict"
    decoder = codecs.getincrementaldecoder(encoding.name)(errors)
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    num_lines = 1
    with path.open("rb") as file:
        while True:
            chunk = file.read(chunk_bytes)
            try:
                text = lines.decode(decoder.decode(chunk, final=not chunk), final=not chunk)
            except UnicodeDecodeError as error:
                message = f"it cannot be read as {encoding.name} ({error.reason})."
                raise ReadingError(message, OTHER_HINT, num_lines) from error
            text = text.replace("\ufeff", "")  # byte order marks of concatenated files
            if "\0" in text:
                line = num_lines + text[: text.index("\0")].count("\n")
                raise ReadingError("there are zero bytes in it.", "It is not a text file.", line)
            num_lines += text.count("\n")
            if text:
                yield text
            if not chunk:
                return


def guess(sample: bytes) -> str:
    """Return the encoding in which a text has letters of a single language.

    If none fits, charset-normalizer decides; it comes last because it needs whole sentences.
    """
    fits: dict[str, float] = {}
    for name, languages in LETTERS:
        text = sample.decode(name, errors="replace")
        # Try words in lower case with an optional initial capital, then words in capitals, which are less
        # common. Capitals in cp1251 have the bytes of small letters in KOI8, so KOI8 has its full weight only
        # if words begin with capitals.
        small = _LETTERS.sub(lambda one: one[0].lower() if one[0][1:].islower() else one[0], text)
        capitals = _LETTERS.sub(lambda one: one[0].lower() if one[0].isupper() else one[0], small)
        usual_case = 0.85 if name == "koi8_r" and not _TITLE_CASE.search(text) else 1.0
        if name == "cp1251" and len(set(_HEBREW_END.findall(small))) > 2 and not _NOT_HEBREW.search(small):
            usual_case = 0.85
        for weight, words in ((usual_case, small), (0.9, capitals)):
            found = _FOREIGN.findall(words.replace("i\u0307", "i"))
            if languages > "\u0250":
                found += _TWO_SCRIPTS.findall(words)
            share = max(_share(each in of for each in found) for of in languages.split())
            fits[name] = max(fits.get(name, 0.0), weight * share)
    for name, usual in USUAL.items():
        found = _FOREIGN.findall(sample.decode(name, errors="replace"))
        fits[name] = _share(
            each != "\ufffd" and re.fullmatch(usual, each.encode(name)) is not None for each in found
        )
    best = max(fits, key=lambda name: fits[name])
    if fits[best] >= FITS:
        return best
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        raise NotInstalledError(f"Guessing an encoding needs charset-normalizer ({error}).") from error
    found_by_model = from_bytes(sample).best()
    return best if found_by_model is None else found_by_model.encoding


def guess_names(names: Sequence[bytes]) -> str:
    """Return the encoding of file names, which are too short for statistics.

    UTF-8 if all names are valid UTF-8; else the first encoding in which all characters are frequent; else the
    Latin code page with the fewest odd characters, where cp850, used in zips by Windows, wins ties.
    """
    try:
        b"".join(names).decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError:
        sample = b" ".join(re.sub(rb"\.\w{1,5}$", b"", name) for name in names)
    for name, frequent in _FREQUENT.items():
        if frequent.fullmatch(sample) and (name != "euc_kr" or len(_HIGH.findall(sample)) >= 10):
            return name
    if len(_ALONE.findall(sample)) < 0.6 * len(_HIGH.findall(sample)):
        return guess(sample)

    def num_odd(code: str) -> int:
        text = sample.decode(code, errors="replace")
        return len(_ODD.findall(text)) + sum(not x.isascii() and not x.isalpha() for x in text)

    return min(("cp850", *LATIN), key=num_odd)


def _share(tests: Iterable[bool]) -> float:
    """Return the fraction of True; 1 if empty."""
    results = list(tests)
    return sum(results) / len(results) if results else 1.0
