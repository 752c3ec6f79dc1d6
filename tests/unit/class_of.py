"""A small class for the login tests: accounts whose passwords are cheap to hash."""

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
    return f"password-of-{person.name}"


def cheap(password: str) -> dict[str, Any]:
    """Return the stored form of a password, hashed at minimal cost."""
    found = hashlib.scrypt(password.encode(), salt=b"salt", n=2, r=1, p=1, dklen=32)
    return {"method": "scrypt", **CHEAP, "salt": b"salt".hex(), "hash": found.hex()}


def make(path: Path, *people: Person) -> AccountFile:
    file = AccountFile(path)
    with file.changing() as accounts:
        for person in people or (ANN, BOB, EVE):
            password = cheap(password_of(person))
            accounts[person.name] = Account(name=person.name, role=person.role, password=password)
    return file
