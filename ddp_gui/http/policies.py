"""Content security policies and the other security headers of our responses.

There are three kinds of responses: data, which may do nothing; our own pages, which run only our files; and
Gradio's page, which needs eval and gets the strictest policy that it works with.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

Header = tuple[bytes, bytes]

DATA = "default-src 'none'; frame-ancestors 'none'"
_PAGE = (
    "default-src 'none'; connect-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
    "manifest-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; "
)
HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
)
POLICY_HEADER = b"content-security-policy"
_KEPT_BY = {b"cache-control", b"etag"}


def own_page(inline_scripts: Iterable[str] = ()) -> str:
    """Return the policy of a page of ours: only our files run, and these inline scripts."""
    # Plotly makes empty style elements and fills them through the CSSOM, which is not inline style; but the
    # superscripts of a logarithmic axis have style attributes.
    scripts, styles = _sources(inline_scripts), _sources([""])
    return f"{_PAGE}script-src 'self'{scripts}; style-src 'self'{styles}; style-src-attr 'unsafe-inline'"


def gradio_page(inline_scripts: Iterable[str]) -> str:
    """Return the policy of Gradio's page: it evals its own templates and uses inline styles."""
    scripts = _sources(inline_scripts)
    return f"{_PAGE}script-src 'self' 'unsafe-eval'{scripts}; style-src 'self' 'unsafe-inline'"


def merged(headers: Iterable[Header]) -> list[Header]:
    """Return a response's headers with ours; its own policy has precedence."""
    theirs = list(headers)
    names = {name.lower() for name, _ in theirs}
    ours = [*HEADERS] if POLICY_HEADER in names else [*HEADERS, (POLICY_HEADER, DATA.encode())]
    if not names & _KEPT_BY and not _is_page(theirs):
        # Neither a file nor a page: a person's data, which the next person at this computer must not find.
        ours.append((b"cache-control", b"no-store"))
    replaced = {name for name, _ in HEADERS}
    return [(name, value) for name, value in theirs if name.lower() not in replaced] + ours


def _is_page(headers: Iterable[Header]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)


def _sources(texts: Iterable[str]) -> str:
    return "".join(f" 'sha256-{_digest(text)}'" for text in texts)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
