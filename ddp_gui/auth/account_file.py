"""Accounts: password hashes and the file of accounts."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_gui.auth.rights import ROLES, Person, Role
from trainers.files import private_files
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.plain_files import FileStat, stat_of
from trainers.machine.os_errors import explain

# Parameters of scrypt, one of OWASP's recommended settings (password storage cheat sheet): 32 MiB and about
# 0.2 s per hash.
COST = {"n": 2**15, "r": 8, "p": 3}
MIN_LENGTH = 8
MAX_LENGTH = 200

_MAX_MEMORY_BYTES = 256 * 2**20
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aeiou"

PasswordHash = Mapping[str, Any]


def hash_password(password: str) -> dict[str, Any]:
    """Return the salted hash of a password.

    Raises:
        ValueError: if it is too short or too long.
    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise ValueError(f"a password must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    salt = secrets.token_bytes(16)
    return {"method": "scrypt", **COST, "salt": salt.hex(), "hash": _scrypt(password, salt, COST).hex()}


def verify_password(password: str, stored: PasswordHash) -> bool:
    """Return True if a password is correct, in constant time.

    Raises:
        ValueError: if the stored hash is damaged.
    """
    try:
        salt, expected = bytes.fromhex(stored["salt"]), bytes.fromhex(stored["hash"])
        if stored["method"] != "scrypt" or not expected:
            raise ValueError(f"unknown method {stored['method']!r}")
        actual = _scrypt(password[:MAX_LENGTH], salt, stored)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the stored password hash is damaged ({error})") from error
    return hmac.compare_digest(actual, expected)


# Hash with which a password for an unknown account is compared, so that it takes the same time.
DUMMY_HASH: PasswordHash = {"method": "scrypt", **COST, "salt": "00" * 16, "hash": "00" * 32}


def random_password() -> str:
    """Return a random pronounceable password of about 44 bits."""

    def syllable() -> str:
        return secrets.choice(_CONSONANTS) + secrets.choice(_VOWELS)

    parts = [syllable() + syllable() for _ in range(3)]
    return "-".join([*parts, f"{secrets.randbelow(90) + 10}"])


def _scrypt(password: str, salt: bytes, cost: Mapping[str, Any]) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", errors="surrogatepass"),
        salt=salt,
        n=cost["n"],
        r=cost["r"],
        p=cost["p"],
        maxmem=_MAX_MEMORY_BYTES,
        dklen=32,
    )


FORMAT = 1
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
NAME_RULE = (
    "1 to 32 lower-case letters without accents, digits, dots and dashes, beginning with a letter or digit"
)


class AccountError(ValueError):
    """The accounts are invalid; the message has the reason and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user who may log in."""

    name: str
    role: Role
    password: PasswordHash

    @property
    def person(self) -> Person:
        return Person(name=self.name, role=self.role)

    @property
    def mark(self) -> str:
        """A hash of password and role, so that a change ends older sessions."""
        content = json.dumps([self.name, self.role, dict(self.password)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


Accounts = dict[str, Account]


class AccountFile:
    """Reads the accounts, reloads them when the file changes, and serialises writers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._mark: FileStat | None = None
        self._read: Accounts = {}

    def read(self) -> Accounts:
        """Return the current accounts.

        Raises:
            AccountError: if the file cannot be read or is invalid.
        """
        try:
            accounts = _parse(read_json(self.path, must_be_ours=True))
            if private_files.make_private(self.path):
                print(f"Other users of this machine could access {self.path}; this is now corrected.")
            return accounts
        except FileNotFoundError:
            raise AccountError(f"the file {self.path} does not exist") from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise AccountError(f"the accounts in {self.path} cannot be read: {explain(error)}") from error

    def find(self, name: str) -> Account | None:
        """Return an account; while the file cannot be read, its last known state."""
        mark = stat_of(str(self.path))
        with self._lock:
            if mark != self._mark:
                self._mark = mark
                try:
                    self._read = self.read()
                except AccountError as error:
                    # Do not log users out while the file is being copied.
                    print(f"{error}; the previous accounts stay in use.", flush=True)
            return self._read.get(name)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Accounts]:
        """Yield the accounts for changes; write them when the block ends without an error.

        Raises:
            AccountError: if the file is invalid.
            ValueError: if the file or its lock belongs to another user.
            OSError: if it cannot be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Do not lock the folder, because any user who can read it could also lock it.
        lock = private_files.open_lock(self.path.with_name(f".{self.path.name}.lock"))
        try:
            # Lock a file, so that concurrent changes do not overwrite each other.
            fcntl.flock(lock, fcntl.LOCK_EX)
            accounts = self.read() if self.path.exists() else {}
            yield accounts
            write_json_atomically(self.path, _to_json(accounts), mode=0o600)
        finally:
            os.close(lock)


def validate_name(name: str) -> str:
    """Return an account name in lower case.

    Raises:
        AccountError: if it is not a valid account name.
    """
    lower_name = name.strip().lower()
    if not NAME.fullmatch(lower_name):
        raise AccountError(f"{name[:80]!r} cannot be the name of an account: {NAME_RULE}")
    return lower_name


def _parse(raw: Any) -> Accounts:
    if not isinstance(raw, dict) or not isinstance(raw.get("accounts"), dict):
        raise ValueError("the file is not an accounts file")
    if raw["format"] != FORMAT:
        raise ValueError(f"the file has format {raw['format']!r}, but this version reads {FORMAT}")
    accounts = [_parse_account(name, entry) for name, entry in raw["accounts"].items()]
    return {account.name: account for account in accounts}


def _parse_account(name: str, entry: Mapping[str, Any]) -> Account:
    # Check the name before a message contains it, because it may contain terminal escapes.
    valid_name = validate_name(name)
    if entry["role"] not in ROLES:
        raise ValueError(f"{name} has the role {entry['role']!r}; allowed: {' or '.join(ROLES)}")
    if not isinstance(entry["password"], dict):
        raise TypeError(f"{name} has no password")
    return Account(name=valid_name, role=entry["role"], password=entry["password"])


def _to_json(accounts: Accounts) -> dict[str, Any]:
    entries = {
        name: {"role": account.role, "password": dict(account.password)}
        for name, account in sorted(accounts.items())
    }
    return {"format": FORMAT, "accounts": entries}
