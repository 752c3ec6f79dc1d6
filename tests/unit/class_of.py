"""A small class for the tests of logging in: accounts whose passwords cost next to nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.rights import Person

ANN = Person(name="ann", role="student")
BOB = Person(name="bob", role="student")
EVE = Person(name="eve", role="teacher")
CHEAP = {"n": 2, "r": 1, "p": 1}


def password_of(person: Person) -> str:
    """Return a person's password."""
    return f"password-of-{person.name}"


def cheap(password: str) -> dict[str, Any]:
    """Return what is kept of a password, hashed with next to no work."""
    found = hashlib.scrypt(password.encode(), salt=b"salt", n=2, r=1, p=1, dklen=32)
    return {"method": "scrypt", **CHEAP, "salt": b"salt".hex(), "hash": found.hex()}


def make(path: Path, *people: Person) -> AccountFile:
    """Write a file of accounts."""
    file = AccountFile(path)
    with file.changing() as accounts:
        for person in people or (ANN, BOB, EVE):
            password = cheap(password_of(person))
            accounts[person.name] = Account(name=person.name, role=person.role, password=password)
    return file
