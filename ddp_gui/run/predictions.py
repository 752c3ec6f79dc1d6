"""The endpoints `/predict` and `/generate`, and the routes of the card "Try it"."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import HTTPException, Request
from fastapi.responses import Response, StreamingResponse

from ddp_gui.auth.rights import current_user
from ddp_gui.background.workers import Router, Workers
from ddp_gui.http import front
from ddp_gui.operations import SEES_RUN, Route, operation
from ddp_gui.run.model_process import WANTS_GPU, ModelError, ModelProcesses
from ddp_gui.runs.runs import RunStore
from trainers.contract import manifests

# Each thread waits for a process of its user.
MODELS = Workers("answers of models", num_threads=8, per_person=2, max_requests=30)
MAX_NEAREST = 20
MAX_TOKENS = 2_000
# Maximum input: an image of a few hundred pixels per side, in base64.
MAX_BYTES = 900_000
# Minimum size of the weights for a GPU: for smaller models, the CPU answers before a GPU is ready.
GPU_BYTES = 200_000_000


class NoModelError(ValueError):
    """The run has no checkpoint."""

    http_status = 404


@dataclass
class PredictApi:
    """The endpoints of trained models. A user needs the right to view the run."""

    _store: RunStore
    _processes: ModelProcesses

    @operation(
        method_checks=SEES_RUN,
        workers=MODELS,
        route=Route(
            path="/live/runs/{run_id}/model/predict",
            max_bytes=MAX_BYTES,
            error_status=409,
            not_an_object="a question to a model must be one JSON object",
        ),
    )
    def predict(
        self, run_id: str, inputs: dict[str, Any], checkpoint_step: int | None = None, num_nearest: int = 0
    ) -> dict[str, Any]:
        """Return the answer of a run's model to one input, by default from the latest checkpoint."""
        num_wanted = _count("num_nearest", num_nearest, 0, MAX_NEAREST)
        answer = self.ask(run_id, checkpoint_step, {"do": "predict", "inputs": inputs})
        if num_wanted:
            # Use the same checkpoint again, although a newer one may have been saved.
            question = {"do": "nearest", "inputs": inputs, "num_wanted": num_wanted}
            answer["nearest"] = self.ask(run_id, answer["step"], question)
        return {"run_id": run_id, **answer}

    @operation(method_checks=SEES_RUN, workers=MODELS)
    def generate(
        self,
        run_id: str,
        prompt: str = "",
        checkpoint_step: int | None = None,
        temperature: float = 0.8,
        top_k: int | None = None,
        num_tokens: int = 200,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Return the continuation of a text by a run's language model."""
        options = {"temperature": temperature, "top_k": top_k, "num_tokens": num_tokens, "seed": seed}
        *tokens, last = self.tokens(run_id, checkpoint_step, prompt, options)
        text = "".join(token["token"]["text"] for token in tokens)
        return {"run_id": run_id, "step": last["step"], "prompt": prompt, "text": text}

    def get_ready(self, run_id: str) -> None:
        """Prepare to answer questions for a run's model.

        Raises:
            ValueError: if the current user cannot see the run, or the run has no checkpoint.
        """
        self._complete(run_id, None, {})
        self._processes.get_ready()

    def ask(self, run_id: str, step: int | None, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a model.

        Raises:
            ValueError: if the current user cannot see the run, or the model cannot answer.
        """
        return self._processes.ask(current_user().name, self._complete(run_id, step, question))

    def tokens(
        self, run_id: str, step: int | None, prompt: str, options: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Yield the tokens of a language model; the last item has the `step` of the checkpoint.

        Raises:
            ValueError: if the current user cannot see the run, or the model cannot answer.
        """
        if not isinstance(prompt, str):
            raise ModelError(f"prompt is {str(prompt)[:40]!r}; allowed: a text")
        options = {
            "temperature": _number("temperature", options.get("temperature", 0.8)),
            "top_k": _count("top_k", options.get("top_k"), 1, 10**7, none=True),
            "num_tokens": _count("num_tokens", options.get("num_tokens", 200), 1, MAX_TOKENS),
            "seed": _count("seed", options.get("seed", 0), 0, 2**53),
        }
        question = self._complete(run_id, step, {"do": "generate", "prompt": prompt, "options": options})
        return self._processes.stream(current_user().name, question)

    def _complete(self, run_id: str, step: int | None, question: dict[str, Any]) -> dict[str, Any]:
        run = self._store.open(run_id)
        checkpoints = run.list_checkpoints()
        if not checkpoints:
            raise NoModelError(
                f"run {run_id} has no checkpoint yet: its model can be used after the first checkpoint"
            )
        checkpoint_step = _count("checkpoint_step", step, 0, 2**53, none=True)
        is_large = manifests.weights_bytes(checkpoints[-1]) >= GPU_BYTES
        wants_gpu = is_large and question.get("do") != "describe"
        return {
            "run_dir": str(run.path.absolute()),
            "step": checkpoint_step,
            WANTS_GPU: wants_gpu,
            **question,
        }


def make_router(api: PredictApi) -> Router:
    """Return the routes below `/live/runs/…/model`: for the card "Try it"."""
    router = Router(prefix="/live/runs/{run_id}/model")

    @router.get("")
    @MODELS.handler
    def describe(run_id: str, step: int | None = None) -> Response:
        return _json(api.ask(run_id, step, {"do": "describe"}))

    @router.post("/ready")
    @MODELS.handler
    def ready(run_id: str) -> Response:
        api.get_ready(run_id)
        return _json({"run_id": run_id})

    @router.get("/confused")
    @MODELS.handler
    def confused(run_id: str, label: int, prediction: int, step: int | None = None) -> Response:
        question = {"do": "confused", "label": label, "prediction": prediction, "num_wanted": MAX_NEAREST}
        return _json(api.ask(run_id, step, question))

    @router.post("/generate")
    async def generate(run_id: str, request: Request) -> Response:
        body = _parse_body(await front.read_json_body(request, MAX_BYTES))
        tokens = await MODELS.run(
            api.tokens, run_id, body.get("checkpoint_step"), body.get("prompt", ""), body
        )
        # Wait for the first token, so that a refused option gives an error status instead of a stream.
        first = await MODELS.run(next, tokens)
        return StreamingResponse(_lines(first, tokens), media_type="application/x-ndjson")

    return router


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        question = front.parse_json_body(body)
    except ValueError as error:
        raise HTTPException(status_code=422, detail=str(error)) from error
    if not isinstance(question, dict):
        raise HTTPException(status_code=422, detail="a question to a model must be one JSON object")
    return question


def _json(answer: dict[str, Any]) -> Response:
    return Response(orjson.dumps(answer), media_type="application/json")


async def _lines(first: dict[str, Any], tokens: Iterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Yield tokens as lines of JSON. When the client leaves, the process stops computing."""
    try:
        yield orjson.dumps(first) + b"\n"
        async for token in MODELS.iterate(tokens):
            yield orjson.dumps(token) + b"\n"
    except ModelError as error:
        yield orjson.dumps({"error": str(error)}) + b"\n"
    finally:
        await MODELS.run(_close, tokens)


def _close(tokens: Iterator[dict[str, Any]]) -> None:
    close = getattr(tokens, "close", None)
    if close is not None:
        close()


def _count(name: str, value: Any, low: int, high: int, *, none: bool = False) -> int | None:
    if value is None and none:
        return None
    # Gradio's clients may send whole numbers as floats, or as text from a form.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value != int(value) or not low <= value <= high:
        allowed = f"a whole number from {low:,} to {high:,}" + (", or null" if none else "")
        raise ModelError(f"{name} is {str(value)[:40]!r}; allowed: {allowed}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ModelError(f"{name} is {str(value)[:40]!r}; allowed: a number")
    return float(value)
