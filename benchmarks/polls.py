"""Thirty people answer a poll in the same moment: how long each waits, and when the projector has them all.

    python -m benchmarks.polls [--rounds 20] [--people 30] [--anonymous]

Serves the page on loopback with a login (or without one and with `--polls`), everybody with a stream of the
poll open. In each round a poll is opened and all answers are sent at once; an answer lasts until its reply is
there. The projector's time is from the first sending to the message that has all answers. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import Conditions, percentile
from ddp_gui.auth import account_file
from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.rights import Role
from tools import page_driver

LESSON = "global-batch"
TEACHER = "teacher"
TIMEOUT_S = 60.0


def main() -> None:
    """Serve the page, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--people", type=int, default=30)
    parser.add_argument("--anonymous", action="store_true", help="without a login, by random tokens")
    options = parser.parse_args()
    conditions = Conditions.note()
    names = [TEACHER, *(f"student-{number}" for number in range(options.people))]
    with tempfile.TemporaryDirectory() as folder:
        password = secrets.token_hex(8)
        how = ["--polls"]
        if not options.anonymous:
            accounts = Path(folder) / "accounts.json"
            make_accounts(accounts, names, password)
            how = ["--auth-file", str(accounts)]
        with page_driver.serve(Path(folder) / "runs", page_driver.NO_STANDBY, *how) as server:
            found = asyncio.run(measure(server.address, names, password, options))
    print(json.dumps({**found, "people": options.people, "conditions": conditions.report()}, indent=2))


def make_accounts(path: Path, names: Sequence[str], password: str) -> None:
    """Write accounts that all have one password: it is hashed once."""
    hashed = account_file.hash_password(password)
    with AccountFile(path).changing() as accounts:
        for name in names:
            role: Role = "teacher" if name == TEACHER else "student"
            accounts[name] = Account(name=name, role=role, password=hashed)


async def measure(
    address: str, names: Sequence[str], password: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of all rounds."""
    async with AsyncExitStack() as stack:
        people = {}
        for name in names:
            client = httpx.AsyncClient(base_url=address, timeout=TIMEOUT_S)
            people[name] = await stack.enter_async_context(client)
            if not options.anonymous:
                (
                    await client.post("/login", data={"username": name, "password": password})
                ).raise_for_status()
        teacher = people.pop(TEACHER)
        answers_ms, projector_ms = list[float](), list[float]()
        for number in range(options.rounds + 1):
            took, shown = await one_round(teacher, list(people.values()), options)
            if number > 0:  # the first one loads what is loaded once
                answers_ms += took
                projector_ms.append(shown)
            print(f"round {number}: {max(took):.0f} ms the slowest", file=sys.stderr)
    return {"answer_ms": figures(answers_ms), "all_on_the_projector_ms": figures(projector_ms)}


async def one_round(
    teacher: httpx.AsyncClient, people: Sequence[httpx.AsyncClient], options: argparse.Namespace
) -> tuple[list[float], float]:
    """Open a poll, have everybody answer at once, and end it; return what it took in ms."""
    poll_id = (await call(teacher, "open_poll", LESSON))["poll_id"]
    async with AsyncExitStack() as stack:
        for person in people:
            await stack.enter_async_context(followed(person, poll_id))
        news = await stack.enter_async_context(followed(teacher, poll_id))
        began = time.perf_counter()

        async def answer(person: httpx.AsyncClient) -> float:
            token = secrets.token_hex(16) if options.anonymous else ""
            body = {"answer": secrets.randbelow(3), "token": token}
            sent = time.perf_counter()
            (await person.post(f"/live/polls/{poll_id}/answer", json=body)).raise_for_status()
            return 1000 * (time.perf_counter() - sent)

        async def see_all() -> float:
            while (await news.get())["num_answers"] < len(people):
                pass
            return 1000 * (time.perf_counter() - began)

        *took, shown = await asyncio.gather(*map(answer, people), see_all())
    await call(teacher, "change_poll", poll_id, "end")
    return took, shown


@asynccontextmanager
async def followed(person: httpx.AsyncClient, poll_id: str) -> AsyncIterator[asyncio.Queue[dict[str, Any]]]:
    """Follow a poll as its page does, from its first message on."""
    news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    has_begun = asyncio.Event()

    async def read() -> None:
        async with person.stream("GET", f"/live/polls/{poll_id}/stream") as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    has_begun.set()
                    news.put_nowait(json.loads(line.removeprefix("data: ")))

    reading = asyncio.create_task(read())
    try:
        await has_begun.wait()
        yield news
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def call(person: httpx.AsyncClient, endpoint: str, *values: object) -> Any:
    """Call a named endpoint as the page does."""
    answer = await person.post(f"/gradio_api/run/{endpoint}", json={"data": values})
    answer.raise_for_status()
    return answer.json()["data"][0]


def figures(values: Sequence[float]) -> dict[str, float]:
    """Return the smallest, the median, the 95th percentile and the largest."""
    found = {"min": min(values), "median": percentile(values, 0.5), "p95": percentile(values, 0.95)}
    return {name: round(value, 1) for name, value in {**found, "max": max(values)}.items()}


if __name__ == "__main__":
    main()
