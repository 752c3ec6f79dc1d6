"""Creates and changes the file of accounts: `python -m ddp_gui.accounts FILE add ann`."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
import unicodedata
from pathlib import Path

from ddp_gui.auth import account_file
from ddp_gui.auth.account_file import Account, AccountError, AccountFile, Accounts, validate_name
from ddp_gui.auth.rights import ROLES, Role
from trainers.files import installation
from trainers.machine.os_errors import explain

SPELT = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "ø": "o", "æ": "ae", "å": "a", "ł": "l"}


def main() -> None:
    """Run one command of the command line."""
    options = _parse(sys.argv[1:])
    os.umask(0o077)
    file = AccountFile(options.file)
    try:
        if options.what == "list":
            _list(file)
        elif options.what == "add":
            _add(file, options.name, options.role)
        elif options.what == "add-class":
            _add_class(file, options.names, options.role)
        elif options.what == "set-password":
            _set_password(file, options.name)
        else:
            _remove(file, options.name)
    except (ValueError, OSError) as error:
        sys.exit(f"Nothing was changed: {explain(error)}.")


def account_name(line: str) -> str:
    """Return the account name for a full name: "Anna Müller" becomes anna-mueller."""
    spelt = "".join(SPELT.get(letter, letter) for letter in line.strip().lower())
    plain = unicodedata.normalize("NFKD", spelt).encode("ascii", "ignore").decode()
    return validate_name(re.sub(r"[^a-z0-9._]+", "-", plain).strip("-._")[:32])


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=installation.command("ddp_gui.accounts"), description=__doc__)
    parser.add_argument("file", type=Path, help="file of the accounts; created if it does not exist")
    commands = parser.add_subparsers(dest="what", required=True)
    add = commands.add_parser("add", help="add one user; asks for the password")
    add.add_argument("name")
    add.add_argument("--role", choices=ROLES, default="student")
    add_class = commands.add_parser("add-class", help="add all users on a list, with generated passwords")
    add_class.add_argument("names", type=Path, help="text file with one name per line")
    add_class.add_argument("--role", choices=ROLES, default="student")
    for action, description in (
        ("set-password", "change a user's password and end the user's sessions"),
        ("remove", "remove a user, end the user's sessions, and keep the user's runs"),
    ):
        commands.add_parser(action, help=description).add_argument("name")
    commands.add_parser("list", help="list the users who may log in")
    return parser.parse_args(arguments)


def _add(file: AccountFile, name: str, role: Role) -> None:
    small = validate_name(name)
    if file.path.exists() and small in file.read():
        raise AccountError(f"the account {small} already exists; set-password changes its password")
    password = account_file.hash_password(_prompt_password(small))
    with file.changing() as accounts:
        accounts[small] = Account(name=small, role=role, password=password)
    print(f"{small} can log in as a {role}.")


def _add_class(file: AccountFile, names: Path, role: Role) -> None:
    lines = [line for line in names.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    made: list[tuple[str, str]] = []
    with file.changing() as accounts:
        for line in lines:
            name = account_name(line)
            if name in accounts:
                print(f"{name} already exists and was not changed.", file=sys.stderr)
                continue
            password = account_file.random_password()
            accounts[name] = Account(name=name, role=role, password=account_file.hash_password(password))
            made.append((name, password))
    print(f"{len(made)} new accounts. The passwords are not stored and are shown only once:", file=sys.stderr)
    width = max((len(name) for name, _ in made), default=0)
    for name, password in made:
        print(f"{name:{width}}  {password}")


def _set_password(file: AccountFile, name: str) -> None:
    small = validate_name(name)
    _found(file.read(), small)
    password = account_file.hash_password(_prompt_password(small))
    with file.changing() as accounts:
        before = _found(accounts, small)
        accounts[small] = Account(name=small, role=before.role, password=password)
    print(f"{small} has a new password and must log in again.")


def _remove(file: AccountFile, name: str) -> None:
    with file.changing() as accounts:
        del accounts[_found(accounts, validate_name(name)).name]
    print(f"{name} can no longer log in.")


def _list(file: AccountFile) -> None:
    for account in file.read().values():
        print(f"{account.name:32}  {account.role}")


def _found(accounts: Accounts, name: str) -> Account:
    if name not in accounts:
        raise AccountError(
            f"account {name} does not exist; the accounts are: {', '.join(accounts) or 'none'}"
        )
    return accounts[name]


def _prompt_password(name: str) -> str:
    """Ask for a password twice; if stdin is not a terminal, read it from the first line."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass(f"Password for {name}: ")
    if getpass.getpass("Repeat it: ") != password:
        raise AccountError("the two passwords differ")
    return password


if __name__ == "__main__":
    main()
