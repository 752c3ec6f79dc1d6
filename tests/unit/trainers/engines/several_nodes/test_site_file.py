"""Tests of the site file: values, and errors that name the file, the key and the allowed values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from trainers.engines import site_file
from trainers.engines.site_file import SiteError


@dataclass(frozen=True, kw_only=True)
class Host:
    """An entry of a list of tables."""

    name: str
    port: int = 22


@dataclass(frozen=True, kw_only=True)
class Place:
    """One value of each type."""

    limit_s: float = 5.0
    retries: int | None = None
    is_shared: bool = False
    lines: tuple[str, ...] = ()
    hosts: tuple[Host, ...] = ()

    def __post_init__(self) -> None:
        if self.limit_s <= 0:
            raise ValueError(f"limit_s is {self.limit_s:g}; allowed: more than 0")


def read(folder: Path, text: str | bytes) -> Place:
    """Read a file with this text."""
    file = folder / "site.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return site_file.read(file, "ssh", Place)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[slrum]", "has 'slrum'; allowed: slurm, ssh (did you mean slurm?)"),
        ("[ssh]\nlimits = 1", "has 'limits' in [ssh]; allowed: limit_s, retries, "),
        ('[ssh]\nlimit_s = "5"', "ssh.limit_s is '5'; allowed: a number"),
        ("[ssh]\nlimit_s = nan", "ssh.limit_s is nan; allowed: a number"),
        ("[ssh]\nis_shared = 1", "ssh.is_shared is 1; allowed: true or false"),
        ('[ssh]\nlines = "a"', "ssh.lines is 'a'; allowed: a list in brackets, each a text in quotes"),
        ("[ssh]\nlines = [1]", "ssh.lines[1] is 1; allowed: a text in quotes"),
        ("[[ssh.hosts]]\nport = 1", "lacks ssh.hosts[1].name: a text in quotes"),
        ("[ssh", "is not TOML: "),
        (b"[ssh]\nlines = ['\xff']", "is not text in UTF-8"),
    ],
)
def test_what_is_unknown_or_wrong_is_refused_in_words(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(SiteError) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(str(tmp_path / "site.toml")) and words in str(refused.value)


def test_what_is_no_file_is_refused_in_words(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SiteError, match="cannot be read"):
            site_file.read(path, "ssh", Place)
    (tmp_path / "large.toml").write_bytes(b"#" * (site_file.MAX_BYTES + 1))
    with pytest.raises(SiteError, match="more than 1,000,000 bytes"):
        site_file.read(tmp_path / "large.toml", "ssh", Place)
