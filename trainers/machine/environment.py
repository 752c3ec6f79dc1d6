"""What a process that is started here gets of this one's environment: all but secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

NOTIFY_URLS = "DDP_NOTIFY_URLS"
# What telling people of a run's end needs: the addresses, and the way out, which may name a password.
FOR_NOTIFYING = frozenset(
    {NOTIFY_URLS, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"}
)

_NAMES = re.compile(
    r"TOKENS?(?![A-Z])|SECRET|PASSW|PASSPHRASE|CREDENTIAL|WEBHOOK|COOKIE"
    r"|(^|_)(KEYS?|PASS|PWD|PAT|AUTH)(_|$)",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"PWD"})
_ADDRESS_WITH_USER = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@]*@", re.IGNORECASE)


def for_a_child(
    more: Mapping[str, str] | None = None,
    *,
    keep: Collection[str] = (),
    without: re.Pattern[str] | None = None,
) -> dict[str, str]:
    """Return the environment for a process: this one's without secrets, then `more`.

    A secret is told by its name (token, key, password, ...) or by an address with a user in it.

    Args:
        keep: names of those that the process has a use for.
        without: the beginnings of names that mean something else to it than to this process.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name in keep or not _is_secret(name, value)) and not (without and without.match(name))
    }
    return kept | dict(more or {})


def _is_secret(name: str, value: str) -> bool:
    if name in _NO_SECRETS:
        return False
    return name == NOTIFY_URLS or bool(_NAMES.search(name) or _ADDRESS_WITH_USER.search(value))
