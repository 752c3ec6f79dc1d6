"""JSON requests to a tracker's service, with the standard library only."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 4 * 2**20
MAX_REASON = 200


class TrackerRefusedError(ValueError):
    """The service has refused a request; `answer` is its JSON, empty if it sent none."""

    def __init__(self, url: str, code: int, answer: Mapping[str, Any]) -> None:
        self.answer = answer
        reason = next((str(answer[name]) for name in ("message", "detail", "error") if answer.get(name)), "")
        super().__init__(f"{url} answered {code}" + (f": {reason[:MAX_REASON]}" if reason else ""))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because a request contains keys for this service only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def split_password(address: str) -> tuple[str, dict[str, str]]:
    """Return an address without user and password, which messages must not contain, and the header for
    authentication.

    Raises:
        ValueError: if the address has no scheme, so that its parts are unknown.
    """
    if address and "://" not in address:
        raise ValueError("the address of the tracker must begin with http:// or https://")
    parts = urllib.parse.urlsplit(address)
    credentials, _, host = parts.netloc.rpartition("@")
    if not credentials:
        return address, {}
    return parts._replace(netloc=host).geturl(), basic_authorization(urllib.parse.unquote(credentials))


def basic_authorization(credentials: str) -> dict[str, str]:
    """Return the header for basic authentication with "user:password"."""
    return {"Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}


def send_request(url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """Send a POST request with a JSON object, or a GET request without a body; return the JSON object of the
    response.

    Raises:
        OSError: if the service does not answer in time.
        RefusedError: if it answers with an error.
        ValueError: if its answer is not a JSON object.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})  # noqa: S310
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as response:
            answer = _parse_object(response.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise TrackerRefusedError(
                url, error.code, _parse_object(error.read(MAX_ANSWER_BYTES)) or {}
            ) from error
    except urllib.error.URLError as error:
        raise OSError(f"{url} does not respond: {error.reason}") from error
    if answer is None:
        raise ValueError(f"the response of {url} is not a JSON object")
    return answer


def _parse_object(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
