"""Distance to the limit: this project's steps per second compared with the bare minimum of the same model.

    python -m benchmarks.limit [--rounds 5] [--cases mlp,cnn] [--ways watched,unwatched] [--scale 1]
                               [--json FILE]

The bare minimum is forward, backward and a fused optimizer step, in one process per rank: no data loading, no
averaging of gradients, no evaluation. Its memory format, allocator settings and threads are those of a rank,
and all processes compute simultaneously, as ranks do. It alternates with the same training on two CPU ranks:
on a served page shown in a real Chromium (watched), and by torchrun alone (`benchmarks/unwatched_worker`).

Rates are wall-clock rates over the last three quarters of the steps; a ratio compares ways of one round. For
the unwatched job the processor time per step is compared too, because other programs affect it less.
`--scale` multiplies the number of steps.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier

import torch

from benchmarks import pairs
from benchmarks.cases import CASES, Case
from benchmarks.compare import JOB_TIMEOUT_S, LEARNING_RATE, NUM_RANKS, SEED, outcome_of
from benchmarks.machine import Conditions, summary
from benchmarks.pairs import Figures
from benchmarks.rivals import lesson
from benchmarks.unwatched_worker import NOTE_EVERY, cpu_ms_per_step
from benchmarks.watching import unwatched, watched
from trainers.machine import host, threads
from trainers.parallel import devices, precision

BARE = "bare minimum"
WAYS: dict[str, Callable[[Namespace], Figures]] = {"watched": watched, "unwatched": unwatched}
# Created in advance, and several: with a single batch gradients would become subnormal numbers, which are
# slow.
NUM_BATCHES = 32

_barrier: Barrier | None = None


def main() -> None:
    """Measure each case alternately, print a table, write the JSON."""
    parser = pairs.parser_of(__doc__, num_rounds=5)
    parser.add_argument("--cases", default=",".join(CASES), help="of: " + ", ".join(CASES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    conditions = Conditions.note()
    found = {
        name: measure(CASES[name], options.ways.split(","), options.rounds, options.scale)
        for name in options.cases.split(",")
    }
    print("| | steps/s of the bare minimum | ratio, median (smallest–largest) |\n|---|---|---|")
    for name, of in found.items():
        rate = of["steps_per_s"][BARE]["median"]
        ratios = "; ".join(
            f"{way} {each['median']:.2f} × ({each['min']:.2f}–{each['max']:.2f})"
            for way, each in of["ratio"].items()
        )
        print(f"| `{name}` | {rate:,.1f} | {ratios} |")
    if options.json is not None:
        options.json.write_text(json.dumps({"cases": found, **conditions.report()}, indent=2) + "\n")


def measure(case: Case, names: list[str], num_rounds: int, scale: float) -> dict[str, dict[str, Figures]]:
    """Return the steps per second of each way, and its ratio to the bare minimum of the same round."""
    num_steps = NOTE_EVERY * max(4, round(scale * case.num_steps / NOTE_EVERY))
    options = Namespace(
        model=case.model,
        size=case.size,
        dataset=case.dataset,
        batch_size=case.batch_size,
        steps=num_steps,
        viewers=1,
        browser=True,
    )
    ways = {name: partial(WAYS[name], options) for name in names}
    found = pairs.in_turns({BARE: partial(bare_minimum, case, num_steps), **ways}, num_rounds)
    rates = {name: pairs.column(rounds, "steps_per_s") for name, rounds in found.items()}
    ratios = {name: pairs.ratios(rates[name], rates[BARE]) for name in names}
    if "unwatched" in found:
        bare, job = (pairs.column(found[name], "cpu_ms_per_step") for name in (BARE, "unwatched"))
        ratios["unwatched, processor time of a step"] = pairs.ratios(bare, job)
    return {
        "steps_per_s": {name: summary(values) for name, values in rates.items()},
        "ratio": {name: summary(values) for name, values in ratios.items()},
    }


def bare_minimum(case: Case, num_steps: int) -> Figures:
    """Train in one process per rank, all simultaneously. Return the mean of their rates."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(NUM_RANKS, timeout=JOB_TIMEOUT_S)
    with ProcessPoolExecutor(NUM_RANKS, context, _keep_barrier, (barrier,)) as pool:
        rounds = list(pool.map(_train, [case] * NUM_RANKS, [num_steps] * NUM_RANKS))
    return {name: sum(pairs.column(rounds, name)) / NUM_RANKS for name in rounds[0]}


def _keep_barrier(barrier: Barrier) -> None:
    global _barrier  # a barrier can be passed to another process only at its start
    _barrier = barrier


def _train(case: Case, num_steps: int) -> Figures:
    """Train the model of a case in one process."""
    device = torch.device("cpu")
    torch.set_num_threads(threads.choose(NUM_RANKS, host.num_cores()))
    devices.keep_freed_memory()
    torch.manual_seed(SEED)
    chosen = Namespace(model=case.model, model_size=case.size, dataset=case.dataset)
    samples, spec = lesson.load(chosen)
    batches = [
        tuple(torch.stack(values) for values in zip(*(samples[i] for i in picked.tolist()), strict=True))
        for picked in torch.randperm(len(samples))[: NUM_BATCHES * case.batch_size].split(case.batch_size)
    ]
    network, objective = lesson.build(chosen, spec).train(), lesson.criterion(spec)
    precision.put_channels_last(network, device, "fp32")
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    moments = []
    assert _barrier is not None
    _barrier.wait()
    for step in range(1, num_steps + 1):
        inputs, targets = batches[step % len(batches)]
        objective.training_loss(network(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % NOTE_EVERY == 0:
            moments.append((step, time.time(), time.process_time()))
    rate = outcome_of([(step, moment) for step, moment, _ in moments], {}).steps_per_s
    return {"steps_per_s": rate, "cpu_ms_per_step": cpu_ms_per_step(moments)}


if __name__ == "__main__":
    main()
