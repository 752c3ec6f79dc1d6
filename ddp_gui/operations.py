"""Operations of the page, which clicks, named endpoints, routes and scripts can request.

An operation is one decorated method. The decorator declares who may call the method and how often, in which
threads the method runs, and whether it also has a route. The endpoint, the route, the checks and the test of
docs/endpoints.md follow from this declaration:

    @operation(run="change")
    def kill_rank(self, run: RunDirectory, rank: int) -> dict[str, Any]:

Callers pass the id of a run, and the method gets the run. The method refuses a call by an exception, which
each transport answers in its own way.
"""

from __future__ import annotations

import functools
import html
import inspect
import time
import types
import typing
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Literal

import gradio as gr
import orjson
from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse, Response

from ddp_gui.auth import rights
from ddp_gui.background.trainer_process import InspectionError
from ddp_gui.background.workers import CLICKS, Router, TooManyError, Workers
from ddp_gui.http import front
from ddp_gui.http.shell import visible
from ddp_gui.plan.catalogue import CatalogueError
from trainers.engines.base import StartError
from trainers.machine.os_errors import NO_SPACE, explain

Function = Callable[..., Any]
# Errors that a user can cause or remedy. Other errors are bugs, whose messages are not shown.
USER_ERRORS = (ValueError, OSError, StartError, CatalogueError, InspectionError)

# Descriptions of who may call an operation.
SEES_RUN = "who may see the run"
OWNER = "owner, teacher"


@dataclass(frozen=True)
class Rate:
    """At most `max_calls` calls in `within_s` seconds per user; no limit without login.

    Each object with operations has its own count.
    """

    name: str
    max_calls: int
    within_s: float = 60.0

    def count(self, api: object) -> None:
        """Count one more call by the current user.

        Raises:
            ValueError: if it exceeds the limit, with the time to wait.
        """
        user, now = rights.current_user().name, time.monotonic()
        if not user:
            return
        # The number of keys is limited by the number of accounts.
        call_times: dict[tuple[Rate, str], deque[float]] = vars(api).setdefault("_counted", {})
        starts = call_times.setdefault((self, user), deque())
        while starts and now - starts[0] > self.within_s:
            starts.popleft()
        if len(starts) >= self.max_calls:
            wait_s = self.within_s - (now - starts[0])
            raise ValueError(
                f"you requested {self.name} {len(starts)} times within {self.within_s:.0f} seconds: "
                f"wait {max(1, round(wait_s))} seconds"
            )
        starts.append(now)


@dataclass(frozen=True, kw_only=True)
class Route:
    """The path at which an operation is also available without Gradio.

    Attributes:
        path: the path, which may contain parameters of the operation, such as `{run_id}`.
        max_bytes: maximum size of the body of a POST request, which is a JSON object of the other
            parameters; 0: a GET request.
        error_status: the HTTP status of errors without their own status.
        not_an_object: the message for a body that is not a JSON object.
    """

    path: str
    max_bytes: int = 0
    error_status: int = 422
    not_an_object: str = ""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The declaration of an operation.

    Attributes:
        signature: the signature for callers, without `self`, and with the id of a run instead of the run.
        run: the right that the current user needs, if the first parameter is a run; otherwise None.
        teacher: the action that only a teacher may do, as the end of a sentence; empty: all users may.
        method_checks: who may call it, if the method itself checks that.
        counts_itself: True if the method itself counts its calls, after validation; others are counted before
            the call.
    """

    name: str
    signature: Signature
    run: Literal["see", "change"] | None
    teacher: str
    method_checks: str
    rate: Rate | None
    counts_itself: bool
    workers: Workers
    route: Route | None

    @property
    def access(self) -> str:
        """Who may call it and how often, as text for docs/endpoints.md."""
        access_by_right = {"see": SEES_RUN, "change": OWNER, None: "teacher" if self.teacher else "all"}
        access = self.method_checks or access_by_right[self.run]
        return access if self.rate is None else f"{access}; {self.rate.max_calls} in {self.rate.within_s:g} s"

    def check(self, api: object) -> None:
        """Check rights and rate.

        Raises:
            ValueError: if the current user may not call it, or has called it too often.
        """
        if self.teacher:
            rights.require_teacher(self.teacher)
        if self.rate is not None and not self.counts_itself:
            self.rate.count(api)

    def with_run(self, api: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the values with the run in place of its id, which is removed from `kwargs`.

        Raises:
            ValueError: if the run does not exist, or the current user lacks the right.
        """
        run_id, *other_args = args or (kwargs.pop("run_id"),)
        return [api.store.open(run_id, to_change=self.run == "change"), *other_args]

    def apply_signature(self, function: Function) -> Function:
        """Give a wrapper function the operation's name, signature and annotations, and return it."""
        wrapper: Any = function
        wrapper.__name__, wrapper.__signature__ = self.name, self.signature
        wrapper.__annotations__ = {
            name: parameter.annotation for name, parameter in self.signature.parameters.items()
        }
        return function


def operation(
    *,
    run: Literal["see", "change"] | None = None,
    teacher: str = "",
    method_checks: str = "",
    rate: Rate | None = None,
    counts_itself: bool = False,
    workers: Workers = CLICKS,
    route: Route | None = None,
) -> Callable[[Function], Function]:
    """Declare a method to be an operation; see `Operation` for the arguments.

    The object needs an attribute `store` (a RunStore) if `run` is given. Methods that are not coroutines run
    in `workers`.
    """

    def declare(method: Function) -> Function:
        signature = _public_signature(method, has_run=run is not None)
        declaration = Operation(
            name=method.__name__,
            signature=signature,
            run=run,
            teacher=teacher,
            method_checks=method_checks,
            rate=rate,
            counts_itself=counts_itself,
            workers=workers,
            route=route,
        )

        @functools.wraps(method)
        def perform(self: Any, *args: Any, **kwargs: Any) -> Any:
            declaration.check(self)
            method_args = args if declaration.run is None else declaration.with_run(self, args, kwargs)
            return method(self, *method_args, **kwargs)

        @functools.wraps(method)
        async def perform_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            declaration.check(self)
            method_args = (
                args
                if declaration.run is None
                else await CLICKS.run(declaration.with_run, self, args, kwargs)
            )
            return await method(self, *method_args, **kwargs)

        wrapper: Any = perform_async if inspect.iscoroutinefunction(method) else perform
        wrapper.operation = declaration
        return typing.cast("Function", wrapper)

    return declare


def _public_signature(method: Function, *, has_run: bool) -> Signature:
    hints = typing.get_type_hints(method)
    signature = inspect.signature(method)
    _self, *parameters = [
        parameter.replace(annotation=hints.get(name, Any)) for name, parameter in signature.parameters.items()
    ]
    if has_run:
        parameters[0] = parameters[0].replace(name="run_id", annotation=str)
    return signature.replace(parameters=parameters, return_annotation=Any)


def list_operations(kind: type) -> Iterator[Operation]:
    """Yield the operations of a class, in the order of their definition."""
    for attribute in vars(kind).values():
        if isinstance(declaration := getattr(attribute, "operation", None), Operation):
            yield declaration


# Named endpoints of Gradio


def register(*apis: object) -> None:
    """Add the operations of these objects as named endpoints to the Gradio app under construction."""
    for api in apis:
        for declaration in list_operations(type(api)):
            # Gradio must neither queue nor serialise the calls, even if a program uses Gradio's queue, so
            # that a click never waits for another user's call.
            endpoint = as_current_user(_endpoint(declaration, getattr(api, declaration.name)))
            gr.api(endpoint, api_name=declaration.name, queue=False, concurrency_limit=None)


def _endpoint(declaration: Operation, method: Function) -> Function:
    """Return a wrapper that checks the types of the values and raises errors that Gradio shows."""
    allowed_types = {
        name: _json_types(parameter.annotation)
        for name, parameter in declaration.signature.parameters.items()
    }

    async def endpoint(*args: Any) -> Any:
        try:
            for (name, allowed), value in zip(allowed_types.items(), args, strict=False):
                json_type = next((kind for kind in _TYPE_NAMES if isinstance(value, kind)), float)
                if allowed and json_type not in allowed and not (json_type is str and float in allowed):
                    raise ValueError(f"{name} is {_TYPE_NAMES[json_type]}, which is not allowed")
            if inspect.iscoroutinefunction(method):
                return await method(*args)
            return await declaration.workers.run(method, *args)
        except USER_ERRORS as error:
            raise gr.Error(error_text(error), print_exception=False) from error

    endpoint.__doc__ = method.__doc__
    return declaration.apply_signature(endpoint)


def _json_types(hint: Any) -> set[type]:
    """Return the JSON types that an annotation allows; empty if it allows all."""
    if hint is Any:
        return set()
    alternatives = (
        typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    )
    origins = {typing.get_origin(part) or part for part in alternatives}
    return {origin if origin in _TYPE_NAMES else float for origin in origins}


_TYPE_NAMES: dict[type, str] = {
    str: "text", list: "a list", dict: "an object", type(None): "null", float: "a number"
}  # fmt: skip


def as_current_user(function: Function, workers: Workers = CLICKS) -> Function:
    """Wrap a Gradio handler so that it runs in these threads with `current_user` set.

    Gradio runs queued calls in its own tasks, which do not inherit context variables but have the request.
    """

    @functools.wraps(function)
    async def handler(asked_request: gr.Request, *args: Any) -> Any:
        with rights.acting_as(_sender_of(asked_request)):
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            try:
                return await workers.run(function, *args)
            except TooManyError as error:
                raise gr.Error(str(error), print_exception=False) from error

    hints = typing.get_type_hints(function)
    request_parameter = Parameter("asked_request", Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    # Gradio reads a handler's parameters from the signature; it injects the request itself and hides it.
    handler.__signature__ = signature.replace(parameters=[request_parameter, *parameters])  # type: ignore[attr-defined]
    handler.__annotations__ = hints | {"asked_request": gr.Request}
    # Remove `__wrapped__`, so that inspect uses this signature.
    del handler.__wrapped__
    return handler


def _sender_of(request: gr.Request) -> rights.Person:
    scope = request.request.scope if request.request is not None else {}
    sender = scope.get(rights.SCOPE_KEY)
    return sender if isinstance(sender, rights.Person) else rights.current_user()


def error_text(error: Exception) -> str:
    """Return the message of one of `USER_ERRORS` for a user."""
    text = explain(error)
    return text[:1].upper() + text[1:] if isinstance(error, OSError) else text


def make_escaped_error(text: str) -> gr.Error:
    """Return an error whose text is escaped, because Gradio's messages are HTML."""
    return gr.Error(html.escape(visible(text)), print_exception=False)


# Routes


def make_router(*apis: object) -> Router:
    """Return the routes of these objects' operations."""
    router = Router()
    for api in apis:
        for declaration in list_operations(type(api)):
            if declaration.route is not None and declaration.route.max_bytes:
                post = _post(declaration, declaration.route, getattr(api, declaration.name))
                router.add_api_route(declaration.route.path, post, methods=["POST"])
            elif declaration.route is not None:
                router.add_api_route(
                    declaration.route.path, _get(declaration, getattr(api, declaration.name))
                )
    return router


def _get(declaration: Operation, method: Function) -> Function:
    def get(**kwargs: Any) -> Any:
        return method(**kwargs)

    return declaration.apply_signature(get)


def _post(declaration: Operation, route: Route, method: Function) -> Function:
    defaults = {
        name: None if parameter.default is Parameter.empty else parameter.default
        for name, parameter in declaration.signature.parameters.items()
    }

    def call(path_params: dict[str, Any], body: bytes) -> Any:
        try:
            values = front.parse_json_body(body)
        except ValueError as error:
            raise HTTPException(status_code=422, detail=str(error)) from error
        if not isinstance(values, dict):
            raise HTTPException(status_code=422, detail=route.not_an_object)
        return method(*((values | path_params).get(name, default) for name, default in defaults.items()))

    async def post(request: Request) -> Response:
        body = await front.read_json_body(request, route.max_bytes)
        try:
            result = await declaration.workers.run(call, request.path_params, body)
            if inspect.isawaitable(result):
                result = await result
        except ValueError as error:
            status = getattr(error, "http_status", route.error_status)
            raise HTTPException(status_code=status, detail=str(error)) from error
        return Response(orjson.dumps(result), media_type="application/json")

    return post


async def answer_os_error(_request: Request, error: Exception) -> JSONResponse:
    """Answer a request whose file operation failed: 507 for a full disk, otherwise 503."""
    is_full = isinstance(error, OSError) and error.errno in NO_SPACE
    return JSONResponse({"detail": error_text(error)}, status_code=507 if is_full else 503)
