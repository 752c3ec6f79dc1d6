"""Passwords: salted hashes, constant-time comparison, and generated passwords for a class."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

# OWASP's password storage cheat sheet, one of its settings of equal strength; 32 MiB and about 0.2 s each.
COST = {"n": 2**15, "r": 8, "p": 3}
SHORTEST = 8
LONGEST = 200

_MAX_MEMORY_BYTES = 256 * 2**20
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aeiou"

Hashed = Mapping[str, Any]


def hashed(password: str) -> dict[str, Any]:
    """Return the salted hash of a password.

    Raises:
        ValueError: when it is too short or too long.
    """
    if not SHORTEST <= len(password) <= LONGEST:
        raise ValueError(f"a password has from {SHORTEST} to {LONGEST} characters")
    salt = secrets.token_bytes(16)
    return {"method": "scrypt", **COST, "salt": salt.hex(), "hash": _scrypt(password, salt, COST).hex()}


def fits(password: str, kept: Hashed) -> bool:
    """Tell whether this is the password, in constant time.

    Raises:
        ValueError: when the stored hash is damaged.
    """
    try:
        salt, expected = bytes.fromhex(kept["salt"]), bytes.fromhex(kept["hash"])
        if kept["method"] != "scrypt" or not expected:
            raise ValueError(f"unknown method {kept['method']!r}")
        found = _scrypt(password[:LONGEST], salt, kept)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the stored password hash is damaged ({error})") from error
    return hmac.compare_digest(found, expected)


# The password of an unknown account is compared with this hash, so that it takes as long.
NOBODYS: Hashed = {"method": "scrypt", **COST, "salt": "00" * 16, "hash": "00" * 32}


def made_up() -> str:
    """Return a random password that can be read out and typed: about 44 bits."""

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
