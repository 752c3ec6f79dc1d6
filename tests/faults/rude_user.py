"""A client process that continuously sends concurrent requests for every slow operation.

python -m tests.faults.rude_user ADDRESS NAME PASSWORD CSV LONG_RUN [RUN …]
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Awaitable, Callable

import httpx

AT_ONCE = 15
DATA_AT_ONCE = 15
TIMEOUT_S = 60.0


class Rude:
    """Requests of one user; the responses are discarded."""

    def __init__(self, http: httpx.AsyncClient, csv: str, runs: list[str]) -> None:
        self._http, self._csv, self._runs = http, csv, runs
        self._dice = random.Random(0)
        self._numbers = itertools.count()

    async def start_on_data(self) -> None:
        """Start a run on large data that is refused after the data was read.

        One in five uses another label column.
        """
        other = {"label_column": f"x{next(self._numbers)}"} if self._dice.random() < 0.2 else {}
        config = {"dataset": "own", "model": "no such model", "data_path": self._csv, **other}
        await self._call("start_run", config, False)

    async def anything_else(self) -> None:
        long, ids = self._runs[0], ",".join(self._runs)
        kinds = ("csv", "json", "tfevents")
        live = f"/live/runs/{long}"
        actions: tuple[Callable[[], Awaitable[None]], ...] = (
            lambda: self._get("/live/runs"),
            lambda: self._get("/live/runs?since=-1"),
            lambda: self._call("list_runs"),
            lambda: self._call("list_bin"),
            lambda: self._get(f"/live/runs/compare?ids={ids}"),
            lambda: self._get(f"{live}/export.{self._dice.choice(kinds)}"),
            lambda: self._get(f"/live/runs/export.zip?kind={self._dice.choice(kinds)}&ids={ids}"),
            lambda: self._get(f"{live}/log/0/search?words=line+{self._dice.random()}"),
            lambda: self._get(f"{live}/view?from=0&to={self._dice.randint(1, 10**6)}&smoothing=900"),
            lambda: self._get(f"{live}/poll?since={self._dice.randint(-1, 100)}"),
            lambda: self._get(f"{live}/summary"),
            lambda: self._get(f"{live}/checkpoints/5/download"),
            self._peek,
        )
        await self._dice.choice(actions)()

    async def for_ever(self, action: Callable[[], Awaitable[None]]) -> None:
        """Repeat an action forever."""
        while True:
            try:
                await action()
            except httpx.HTTPError:
                await asyncio.sleep(0.05)

    async def _peek(self) -> None:
        """Open the stream of a run and disconnect after its first chunk."""
        path = f"/live/runs/{self._dice.choice(self._runs)}/stream?smoothing={self._dice.randint(0, 999)}"
        async with self._http.stream("GET", path) as answer:
            async for _ in answer.aiter_bytes():
                return

    async def _get(self, path: str) -> None:
        async with self._http.stream("GET", path) as answer:
            async for _ in answer.aiter_raw():
                pass

    async def _call(self, endpoint: str, *values: object) -> None:
        answer = await self._http.post(f"/gradio_api/run/{endpoint}", json={"data": list(values)})
        # Limits the retries of a refused request to 20 per second.
        if answer.status_code != httpx.codes.OK:
            await asyncio.sleep(0.05)


async def main() -> None:
    """Log in and send requests until killed."""
    address, name, password, csv, *runs = sys.argv[1:]
    limits = httpx.Limits(max_connections=AT_ONCE + DATA_AT_ONCE)
    async with httpx.AsyncClient(base_url=address, timeout=TIMEOUT_S, limits=limits) as http:
        await http.post("/login", data={"username": name, "password": password})
        rude = Rude(http, csv, runs)
        print("begins", flush=True)
        async with asyncio.TaskGroup() as group:
            for _ in range(DATA_AT_ONCE):
                group.create_task(rude.for_ever(rude.start_on_data))
            for _ in range(AT_ONCE):
                group.create_task(rude.for_ever(rude.anything_else))


if __name__ == "__main__":
    asyncio.run(main())
