"""Measure how long each route, stream and endpoint blocks the event loop with inputs at their limits.

Routes and endpoints are read from the app, so new ones are covered automatically. The page is served in a
thread of this process, and each request uses its own socket. The measure is the CPU time that the loop's
thread spends in one callback, or that this process spends while the loop's timer is late; other programs do
not count. Requests of a route that exceeds the limit are repeated, and the minimum of three attempts counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import Mount

from ddp_gui import server
from ddp_gui.auth.login import Login
from ddp_gui.background.loop_delay import LIMIT_S, LoopDelay
from ddp_gui.gradio_routes.gate import is_open
from ddp_gui.gradio_routes.sent_values import LONG_CALLS
from ddp_gui.http import front
from ddp_gui.http.connections import BoundedProtocol
from ddp_gui.http.front import MAX_BODY_BYTES, MAX_HEADER_BYTES
from ddp_gui.http.listening import Listener
from ddp_gui.options import Options
from ddp_gui.plan.catalogue import CatalogueSource, default_cache_file
from tests import made_up_runs

# Leave room for the request line and the standard headers.
QUERY_BYTES = MAX_HEADER_BYTES - 1_500
BODY_BYTES = MAX_BODY_BYTES - 2_000
ATTEMPTS = 3
FIRST_BYTE_S = 60.0
STREAM_S = 0.25
TICK_S = 0.005
LONG_RUN_STEPS = 5_000
FORM = "application/x-www-form-urlencoded"
QUEUED_S = 0.08


@dataclass(frozen=True, kw_only=True)
class Request:
    """One HTTP request as raw bytes. `kind` is the kind of a made-up input, a key of `texts` or `values`."""

    target: str
    what: str
    data: bytes
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The longest time that a route blocked the loop, and the input that caused it."""

    target: str
    seconds: float
    what: str
    status: str
    num_inputs: int


@dataclass
class Page:
    """A served page and the measurement of its event loop."""

    app: FastAPI
    address: tuple[str, int]
    delay: LoopDelay
    run_ids: list[str]
    # Session cookies of the account that sends the requests, and of a second session to log out. Empty
    # without login.
    cookie: bytes = b""
    cookie_to_end: bytes = b""

    @property
    def gradio(self) -> Any:
        """Return Gradio's app."""
        mounted = next(route for route in self.app.routes if isinstance(route, Mount) and route.path == "")
        return mounted.app._gradio  # type: ignore[attr-defined]


@contextlib.contextmanager
def served(
    folder: Path, num_runs: int, login: Login | None = None, form: Mapping[str, str] | None = None
) -> Iterator[Page]:
    """Serve the page in a thread, with `num_runs` runs.

    Args:
        form: Name and password of the account that sends the requests.
    """
    options = Options(host="127.0.0.1", port=0, runs_dir=folder / "runs", open_browser=False)
    options.runs_dir.mkdir(parents=True)
    run_ids = made_up_runs.make(options.runs_dir, num_runs, 50)
    run_ids += [made_up_runs.make_one(options.runs_dir, num_runs, LONG_RUN_STEPS, time.time(), Random(0))]
    app = server.build_app(options, CatalogueSource(default_cache_file()), login)
    measured = LoopDelay(tick_s=TICK_S)
    with Listener(socket.AF_INET, "", is_one_users=False, trusts_proxy_names=False) as listener:
        listener.bind(("127.0.0.1", 0))
        http = functools.partial(BoundedProtocol, listener=listener)
        config = uvicorn.Config(
            server.add_access_checks(app, options, login),
            http=http,  # type: ignore[arg-type]
            log_level="critical",
            loop="asyncio",
            ws="none",
        )
        serving = uvicorn.Server(config)

        async def serve() -> None:
            measuring = asyncio.create_task(measured.measure())
            await serving.serve([listener])
            measuring.cancel()

        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        before = sys.getswitchinterval()
        server.tune_interpreter()
        thread.start()
        try:
            while not serving.started:
                time.sleep(0.02)
            page = Page(app=app, address=listener.getsockname(), delay=measured, run_ids=run_ids)
            if form is not None:
                page.cookie_to_end, page.cookie = _log_in(page, form), _log_in(page, form)
            ask(page, request("GET", "/live/runs?since=-1"))
            yield page
        finally:
            serving.should_exit = True
            thread.join(timeout=60)
            sys.setswitchinterval(before)
            gc.unfreeze()


def _log_in(page: Page, form: Mapping[str, str]) -> bytes:
    answer = ask(page, request("POST", "/login", urlencode(form).encode(), FORM))
    found = re.search(rb"set-cookie: ([^;]+)", answer, re.IGNORECASE)
    assert found is not None, answer
    return found[1]


def ask(page: Page, data: bytes, *, is_stream: bool = False, cookie: bytes | None = None) -> bytes:
    """Send a request and return the response; for a stream, only its beginning."""
    cookie = page.cookie if cookie is None else cookie
    if cookie:
        request_line, rest = data.split(b"\r\n", 1)
        data = request_line + b"\r\nCookie: " + cookie + b"\r\n" + rest
    received = b""
    with socket.create_connection(page.address) as sender:
        sender.settimeout(FIRST_BYTE_S)
        with contextlib.suppress(ConnectionError):  # the server may refuse before everything is sent
            sender.sendall(data)
        with contextlib.suppress(ConnectionError, TimeoutError):
            while piece := sender.recv(1_000_000):
                received += piece
                if is_stream:
                    sender.settimeout(STREAM_S)
    return received


def request(
    method: str, path: str, body: bytes = b"", kind: str = "application/json", more: bytes = b""
) -> bytes:
    """Return a request as raw bytes."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAccept-Encoding: gzip, br\r\n"
    )
    if body or method not in ("GET", "HEAD"):
        head += f"Content-Length: {len(body)}\r\nContent-Type: {kind}\r\n"
    return head.encode("latin-1") + more + b"\r\n" + body


def measure(page: Page, group: Sequence[Request]) -> tuple[float, str]:
    """Send requests one after the other; return the longest block of the loop, and the last status."""
    page.delay.forget()
    status, rest_s = "", 2 * TICK_S
    for asked in group:
        cookie = page.cookie
        if "headers" in asked.target or "/logout" in asked.target:
            cookie = b"" if "headers" in asked.target else page.cookie_to_end
        is_stream = any(word in asked.target for word in ("/stream", "heartbeat", "queue/data"))
        answer = ask(page, asked.data, is_stream=is_stream, cookie=cookie)
        status = answer[9:12].decode("ascii", errors="replace") or "none"
        if "queue/join" in asked.what or asked.what.startswith("join"):
            rest_s = QUEUED_S  # a queued call is processed after the response
    time.sleep(rest_s)
    ticks, held = page.delay.readings()
    late = max((min(tick.late_s, tick.process_cpu_s) for tick in ticks), default=0.0)
    return max([late, *(one.cpu_s for one in held)]), status


# --- inputs at their limits -------------------------------------------------------------------------------


def texts(size: int) -> Mapping[str, str]:
    """Return strings of `size` bytes, encoded for a query or a path segment."""
    return {
        "letters": "a" * size,
        "digits": "1" * size,
        "commas": ("1," * size)[:size],
        "backslashes": "%5C" * (size // 3),
        "dots and slashes": "..%2Fx%2F" * (size // 9),
        "folders": "x/" * (size // 2),
        "percent": "%25" * (size // 3),
        "quotes": "%22%0A" * (size // 6),
        "not UTF-8": "%FF%FE" * (size // 6),
        "spaces": "%20a" * (size // 4),
    }


def values(size: int) -> Mapping[str, str]:
    """Return JSON values of at most `size` bytes, with as many parts as the limits allow."""
    num_parts, num_values = (
        min(size // 5, front.MAX_PARTS - 60),
        min(size // 9, front.MAX_VALUES - 100),
    )
    file = {"meta": {"_type": "gradio.FileData"}}
    return {
        "letters": '"' + "a" * size + '"',
        "backslashes": '"' + "\\\\" * (size // 2) + '"',
        "escapes": '"' + "\\u00e9" * (size // 6) + '"',
        "quotes": '"' + '\\"' * (size // 2) + '"',
        "line ends": '"' + "\\n" * (size // 2) + '"',
        "digits": "1" * size,
        "digits of a string": '"' + "1" * size + '"',
        "a relative path": '"' + "../x/" * (size // 5) + '"',
        "markup": '"' + "<b>[`*" * (size // 6) + '"',
        "nested": "[" * (size // 2) + "]" * (size // 2),
        "nested as far as is let in": "[" * 35 + "1" + "]" * 35,
        "zeros": _list(["0"] * min(size // 2, num_values)),
        "lists": _list(["[]"] * num_parts),
        "more lists": _list(["[]"] * (size // 3)),
        "objects": _list(['{"a":1}'] * min(num_parts // 2, size // 8)),
        "names": _list([f'"{number:06}"' for number in range(num_values)]),
        "ids": _list([f'"run-{number:036}"' for number in range(min(num_values, size // 43))]),
        "keys": "{" + ",".join(f'"{number:04}":0' for number in range(min(num_parts, size // 9))) + "}",
        "more keys": "{" + ",".join(f'"{number}":0' for number in range(size // 9)) + "}",
        "a file": json.dumps({"path": "/usr/.." * (size // 7 - 10), **file}),
        "a file of 4,000 characters": json.dumps({"path": "/usr/." * 660, **file}),
        "files": _list([json.dumps({"path": "/usr/x/../y"})] * min(num_parts // 2, size // 25)),
        "a configuration": json.dumps({"data_path": "/usr/.." * (size // 7 - 10), "dataset": "own"}),
        "a configuration of a plain path": json.dumps({"data_path": "/usr/." * 660, "dataset": "own"}),
    }


def _list(items: list[str]) -> str:
    return f"[{','.join(items)}]"


def headers(name: bytes = b"a") -> Mapping[str, bytes]:
    """Return headers of the maximum total size."""
    size = QUERY_BYTES
    return {
        "many headers": b"a:b\r\n" * (size // 5),
        "cookie of backslashes": b"Cookie: " + name + b'="' + b"\\" * (size - 40) + b'"\r\n',
        "cookie of octals": b"Cookie: " + name + b'="' + b"\\101" * (size // 4 - 5) + b'"\r\n',
        "many cookies": b"Cookie: " + b"a=b;" * (size // 4 - 4) + b"\r\n",
        "one long header": b"X-A: " + b"," * (size - 20) + b"\r\n",
        "ranges": b"Range: bytes=" + b"0-1," * (size // 4 - 10) + b"2-3\r\n",
        "etags": b"If-None-Match: " + b'"a",' * (size // 4 - 10) + b'"b"\r\n',
        "encodings": b"Accept-Encoding: " + b"gzip," * (size // 5 - 10) + b"\r\n",
        "languages": b"Accept-Language: " + b"en;q=0.1," * (size // 9 - 10) + b"\r\n",
        "forwarded": b"X-Forwarded-For: " + b"1.1.1.1," * (size // 8 - 10) + b"\r\n",
    }


# --- requests ---------------------------------------------------------------------------------------------


# Kinds of inputs that can be slow in a route's own code: paths, numbers and many parts. The others can only
# be slow in the parsing of requests, which is the same for every route.
USUAL = ("digits", "commas", "dots and slashes", "a relative path", "ids", "keys", "files", "a configuration")
# These receive inputs of every kind.
THOROUGH = ("call catalog", "call delete_runs", "POST /login", "POST /gradio_api/reset", "GET /live/runs")


def is_usual(asked: Request) -> bool:
    """Return False for an input that only exercises what all routes share, if others also receive it."""
    return not asked.kind or asked.kind in USUAL or asked.target in THOROUGH


def requests(page: Page) -> Iterator[Request]:
    """Yield the requests to every route, stream and endpoint."""
    yield from _of_headers(page.cookie.partition(b"=")[0] or b"a")
    for route in iter_route_contexts(page.app.routes):
        if isinstance(route.original_route, APIRoute):
            for method in sorted(route.methods or ()):
                yield from _of_route(page, method, str(route.path), route.original_route)
    for mount in page.app.routes:
        if isinstance(mount, Mount) and mount.path:
            yield from _of_path("GET", mount.path + "/{path}", {})
    yield from _of_gradio(page)
    yield from _of_functions(page)
    yield from _of_uploads()


def _of_headers(cookie_name: bytes) -> Iterator[Request]:
    for name, sent in headers(cookie_name).items():
        yield Request(target="any route: headers", what=name, data=request("GET", "/live/me", more=sent))
        yield Request(target="Gradio: headers", what=name, data=request("GET", "/config", more=sent))
        yield Request(
            target="files: headers", what=name, data=request("GET", "/live/assets/js/main.js", more=sent)
        )


def _of_route(page: Page, method: str, path: str, route: APIRoute) -> Iterator[Request]:
    known = {"run_id": page.run_ids[-1], "kind": "csv", "source": "0", "step": "1", "target": "slurm"}
    names = [field.alias for field in route.dependant.query_params]
    names += [field.alias for each in route.dependant.dependencies for field in each.query_params]
    names += ["from", "to"] if path.endswith("/view") else []
    yield from _of_path(method, path, known, names)
    if method in ("POST", "PUT", "PATCH", "DELETE"):
        yield from _of_bodies(method, path, lambda value: value)
        form = b"&".join(b"a%d=1" % number for number in range(90_000))
        for what, body in {
            "a form of 90,000 fields": form,
            "a form of one": b"password=" + b"%5C" * 300_000,
        }.items():
            yield Request(target=f"{method} {path}", what=what, data=request(method, path, body, FORM))


def _of_path(method: str, path: str, known: Mapping[str, str], names: list[str] = []) -> Iterator[Request]:  # noqa: B006
    target = f"{method} {path}"

    def filled(given: Mapping[str, str]) -> str:
        return re.sub(r"\{(\w+)[^}]*\}", lambda match: given.get(match[1], "x"), path)

    basis = filled(known)
    yield Request(target=target, what="as it is", data=request(method, basis))
    for part in re.findall(r"\{(\w+)", path):
        for what, text in texts(QUERY_BYTES).items():
            yield Request(
                target=target,
                what=f"{part} of {what}",
                kind=what,
                data=request(method, filled({**known, part: text})),
            )
    many = "&".join(["a=1"] * (QUERY_BYTES // 4))
    yield Request(target=target, what="many fields", data=request(method, f"{basis}?{many}"))
    plain = {
        "smoothing": "50",
        "from": "0",
        "to": "9",
        "ids": known.get("run_id", "x"),
        "name": "global-batch",
    }
    for name in names:
        rest = "".join(
            f"{other}={value}&" for other, value in plain.items() if other in names and other != name
        )
        for what, text in texts(QUERY_BYTES - 200).items():
            sent = f"{basis}?{rest}{name}={text}"
            yield Request(target=target, what=f"{name} of {what}", kind=what, data=request(method, sent))
        yield Request(
            target=target,
            what=f"{name} many times",
            data=request(method, f"{basis}?" + f"{name}=1&" * (QUERY_BYTES // (len(name) + 3))),
        )


def _of_bodies(method: str, path: str, put: Callable[[str], str], target: str = "") -> Iterator[Request]:
    sized = [(what, value) for size in (front.MAX_BYTES, BODY_BYTES) for what, value in values(size).items()]
    for what, value in sized:
        body = put(value).encode()
        yield Request(
            target=target or f"{method} {path}", what=what, kind=what, data=request(method, path, body)
        )


def _of_gradio(page: Page) -> Iterator[Request]:
    """Yield requests to Gradio's open routes, except those that call functions."""
    for route in iter_route_contexts(page.gradio.routes):
        for method in sorted(route.methods or ()):
            path = re.sub(r"\{[^}]*\}", "x", str(route.path))
            if not is_open(method, path) and not is_open(method, path := f"/gradio_api{path}"):
                continue
            if method == "POST":
                if not re.search("/(run|api|call|upload)/?", path):
                    yield from _of_bodies(method, path, lambda value: value)
                continue
            yield from _of_path(method, str(path), {})
    yield from _of_path("GET", "/gradio_api/queue/data", {}, ["session_hash"])
    for path in (
        "/assets/{x}",
        "/static/js/{x}",
        "/gradio_api/heartbeat/{x}",
        "/gradio_api/call/catalog/{x}",
    ):
        yield from _of_path("GET", path, {})


def _of_functions(page: Page) -> Iterator[Request]:
    """Yield calls of every named endpoint and every function of the page, over each transport."""
    demo = page.gradio.get_blocks()
    for number, function in demo.fns.items():
        if not function.fn or not function.api_name:
            continue
        num = max(1, sum(not getattr(block, "skip_api", False) for block in function.inputs))
        target = f"call {function.api_name}"
        is_public = function.api_visibility == "public"
        ways = {"run": f"/gradio_api/run/{function.api_name}"} if is_public else {}
        if not is_public or number == 0:
            ways["join"] = "/gradio_api/queue/join"
        if number == 0:
            ways["call"] = f"/gradio_api/call/{function.api_name}"
        for way, path in ways.items():
            more = f',"fn_index":{number},"session_hash":"a{number}"' if way == "join" else ""
            yield Request(
                target=target,
                what=f"{way}, no data",
                data=request("POST", path, f'{{"data":[]{more}}}'.encode()),
            )
            # Longer bodies are refused for all functions except those that take many IDs.
            is_long = number == 0 or function.api_name in LONG_CALLS
            for size in (front.MAX_BYTES - 2_000, *([BODY_BYTES] if is_long else [])):
                for what, value in values(size).items():
                    body = f'{{"data":[{value}{",null" * (num - 1)}]{more}}}'.encode()
                    sent = request("POST", path, body)
                    yield Request(
                        target=target, what=f"{way}, {size:,} bytes of {what}", kind=what, data=sent
                    )


def _of_uploads() -> Iterator[Request]:
    kind = "multipart/form-data; boundary=x"
    part = b'--x\r\nContent-Disposition: form-data; name="files"; filename="%b"\r\n\r\n%b\r\n--x--\r\n'
    bodies = {
        "near boundaries": part % (b"a.csv", b"\r\n--" * 400_000),
        "a long name": part % (b"../" * 300_000 + b"a.csv", b"1"),
        "a name of backslashes": part % (b"\\" * 900_000, b"1"),
        "many parts": b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 16_000 + b"--x--\r\n",
        "many headers": b"--x\r\n" + b"A: b\r\n" * 150_000 + b"\r\n--x--\r\n",
        "a long header": b"--x\r\nA: " + b";" * 900_000 + b"\r\n\r\n--x--\r\n",
        "parameters": b"--x\r\nContent-Disposition: form-data"
        + b'; a="b"' * 120_000
        + b"\r\n\r\n1\r\n--x--\r\n",
    }
    for what, body in bodies.items():
        yield Request(
            target="POST /gradio_api/upload",
            what=what,
            data=request("POST", "/gradio_api/upload", body, kind),
        )
    long_kind = "multipart/form-data; boundary=" + '"' + "\\" * (QUERY_BYTES - 200)
    yield Request(
        target="POST /gradio_api/upload",
        what="a boundary of backslashes",
        data=request("POST", "/gradio_api/upload", b"x", long_kind),
    )


def measure_all(
    page: Page, only: str = "", wanted: Callable[[Request], bool] = lambda _: True
) -> list[Worst]:
    """Return the worst delay of every route, with the inputs that are wanted.

    The inputs of a route are sent one after the other, and measured one by one only if one was too slow.
    """
    inputs: dict[str, list[Request]] = {}
    for asked in requests(page):
        if only in f"{asked.target} {asked.what}" and wanted(asked):
            inputs.setdefault(asked.target, []).append(asked)
    found = []
    for target, group in inputs.items():
        seconds, status = measure(page, group)
        worst = Worst(target=target, seconds=seconds, what="", status=status, num_inputs=len(group))
        if seconds > LIMIT_S:
            for asked in group:
                seconds, status = min(measure(page, [asked]) for _ in range(ATTEMPTS))
                if not worst.what or seconds > worst.seconds:
                    worst = replace(worst, seconds=seconds, what=asked.what, status=status)
        found.append(worst)
    return found
