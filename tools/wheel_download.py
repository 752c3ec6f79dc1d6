"""Find a wheel of torch in an index with the layout of PyTorch's, and download it; standard library only."""

from __future__ import annotations

import hashlib
import http.client
import os
import platform
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

# An index that does not answer within this time is not used.
INDEX_TIMEOUT_S = 5.0
# Nor is one whose page takes longer in total or is larger.
INDEX_PAGE_S = 15.0
INDEX_PAGE_BYTES = 20_000_000
# A download that stalls for this time is requested again, from its current position.
STALL_S = 30.0
NUM_ATTEMPTS = 4
PROGRESS_EVERY_S = 5.0


class UnusableError(Exception):
    """An index or a download that cannot be used; the message says why."""


def use_proxy_of_pip(settings: str) -> None:
    """Use the proxy and certificates that `pip config list` prints, unless the environment names others."""
    found = dict(re.findall(r"^(?:global|install|:env:)\.(proxy|cert)='([^']+)'$", settings, re.MULTILINE))
    if "proxy" in found:
        for name in ("http_proxy", "https_proxy"):
            os.environ.setdefault(name, found["proxy"])
    if "cert" in found:
        os.environ.setdefault("SSL_CERT_FILE", found["cert"])


@dataclass(frozen=True)
class Wheel:
    """A wheel of an index: its build, address, size and the SHA-256 that the index names, if any."""

    build: str
    name: str
    url: str
    num_bytes: int
    sha256: str | None

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.url).netloc


def find_wheel(index: str, torch: str, build: str) -> Wheel:
    """Return the wheel of a version and a build of torch for this interpreter and this machine.

    Raises:
        UnusableError: when the index does not answer in time, refuses, or has no such wheel.
        urllib.error.HTTPError: when the server refuses this build.
    """
    page = f"{index}/{build}/torch/"
    text = _read_page(page)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = re.compile(
        rf"torch-{re.escape(torch)}\+{build}-{python}-{python}-"
        rf"(?:linux|manylinux_(\d+)_(\d+))_{re.escape(platform.machine())}\.whl"
    )
    for link in re.findall(r"""href=["']?([^"'\s>]+)""", text):
        url, _, fragment = urllib.parse.urljoin(page, link.replace("&amp;", "&")).partition("#")
        found = name.fullmatch(urllib.parse.unquote(url.rsplit("/", 1)[-1]))
        if found and (found[1] is None or (int(found[1]), int(found[2])) <= _glibc()):
            sha256 = re.match(r"sha256=([0-9a-f]{64})", fragment)
            return Wheel(build, found[0], url, _size(url), sha256[1] if sha256 else None)
    python = ".".join(map(str, sys.version_info[:2]))
    what = f"torch {torch}+{build} for Python {python} on {platform.machine()}"
    raise UnusableError(f"{page} lists no {what}")


def _glibc() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.libc_ver()[1].split(".") if part.isdigit())


def _request(url: str, timeout_s: float, *, method: str = "GET", offset: int = 0) -> http.client.HTTPResponse:
    """Send a request.

    Raises:
        UnusableError: when nothing answers, or not in HTTP.
        urllib.error.HTTPError: when the server refuses.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UnusableError(f"{url} is neither http nor https")
    request = urllib.request.Request(url, method=method, headers={"User-Agent": "torch-build"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)  # nosec B310
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnusableError(f"{urllib.parse.urlsplit(url).netloc}: {_reason(error)}") from error
    return response


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer"
    return str(cause) or type(cause).__name__


def _read_page(url: str) -> str:
    deadline = time.monotonic() + INDEX_PAGE_S
    page = bytearray()
    with _request(url, INDEX_TIMEOUT_S) as response:
        try:
            while data := response.read1(1 << 16):
                page += data
                if time.monotonic() > deadline or len(page) > INDEX_PAGE_BYTES:
                    raise UnusableError(
                        f"{url} sends more than {INDEX_PAGE_S:.0f} s or {INDEX_PAGE_BYTES} bytes"
                    )
        except (OSError, http.client.HTTPException) as error:
            raise UnusableError(f"{url}: {_reason(error)}") from error
    return page.decode("utf-8", "replace")


def _size(url: str) -> int:
    with _request(url, INDEX_TIMEOUT_S, method="HEAD") as response:
        length = response.headers.get("Content-Length", "")
    if not length.isdigit() or length == "0":
        raise UnusableError(f"{url} does not say its size")
    return int(length)


def first_wheel(index: str, torch: str, builds: Iterable[str]) -> Wheel:
    """Return the wheel of the first of these builds of torch that the index has.

    Raises:
        UnusableError: none is available; the message states the reason.
    """
    why = f"{index} has no build to try"
    for build in builds:
        try:
            return find_wheel(index, torch, build)
        except urllib.error.HTTPError as error:
            # The index also answers 403 for a build that it never had, so the next one is tried.
            why = f"{urllib.parse.urlsplit(error.url or index).netloc} answers {error.code} {error.reason}"
        except UnusableError as error:
            if "lists no" not in str(error):
                raise
            why = str(error)
    raise UnusableError(why)


def download(wheel: Wheel, folder: Path, report: Callable[[int, int], None]) -> Path:
    """Download a wheel, or the missing part of it, and return its path.

    An interrupted download stays in the folder as `.part`, and the next call continues it.

    Raises:
        UnusableError: when the server refuses or the connection is lost; the message states the progress.
        OSError: when the file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    done, part = folder / wheel.name, folder / f"{wheel.name}.part"
    # Delete parts of other builds.
    for other in folder.glob("torch-*"):
        if other not in (done, part):
            other.unlink()
    if not done.exists():
        why = ""
        for attempt in range(NUM_ATTEMPTS):
            have = part.stat().st_size if part.exists() else 0
            if have >= wheel.num_bytes:
                break
            if attempt:
                time.sleep(attempt)
            try:
                _append(wheel, part, have, report)
            except UnusableError as error:
                why = str(error)
        have = part.stat().st_size if part.exists() else 0
        if have < wheel.num_bytes:
            why = why or f"{wheel.host} closed the connection"
            raise UnusableError(f"{why}; {mb(have)} of {mb(wheel.num_bytes)} MB are here")
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if have != wheel.num_bytes or (wheel.sha256 is not None and found != wheel.sha256):
            part.unlink()
            raise UnusableError(
                f"{wheel.host} sent a file that does not match the index in SHA-256 or size; it was deleted"
            )
        part.rename(done)
    return done


def _append(wheel: Wheel, part: Path, have: int, report: Callable[[int, int], None]) -> None:
    with _request(wheel.url, STALL_S, offset=have) as response:
        # A server that ignores ranges sends the file from its beginning.
        if have and response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            report(have, wheel.num_bytes)
            while True:
                try:
                    data = response.read1(1 << 20)
                except (OSError, http.client.HTTPException) as error:
                    raise UnusableError(f"{wheel.host}: {_reason(error)}") from error
                if not data:
                    return
                file.write(data)
                have += len(data)
                report(have, wheel.num_bytes)


def mb(num_bytes: int) -> str:
    """Return a number of bytes in MB, without the unit."""
    return f"{num_bytes / 1e6:.0f}"


class Progress:
    """Prints how far a download is: in place on a terminal, otherwise a line every few seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next_s = 0.0
        self._begin: tuple[float, int] | None = None

    def __call__(self, have: int, num_bytes: int) -> None:
        """Print a line, unless the last one is recent."""
        now = time.monotonic()
        if self._begin is None:
            self._begin = now, have
        if now < self._next_s and have < num_bytes:
            return
        self._next_s = now + (0.2 if self._is_terminal else PROGRESS_EVERY_S)
        line = f"torch: {mb(have)} of {mb(num_bytes)} MB"
        began, first = self._begin
        if have > first and now > began:
            rate = (have - first) / (now - began)
            line += f", {rate / 1e6:.1f} MB/s, {(num_bytes - have) / rate:.0f} s left"
        end = "\r" if self._is_terminal and have < num_bytes else "\n"
        print(f"{line:<60}" if self._is_terminal else line, end=end, file=sys.stderr, flush=True)
