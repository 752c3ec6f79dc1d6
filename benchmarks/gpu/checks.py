"""The checks: speed compared with the bare loop, cost of watching, waits for the GPU, checkpoint stalls."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu import cards, job, traces
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.job import Rates
from benchmarks.machine import summary

LEAST_SPEED = 1.0
MOST_COST_OF_WATCHING = 0.005
MOST_COPIES = 1.2
SMOKE = "not judged: smoke mode"

Found = dict[str, Any]


def speed(bench: Bench) -> Found:
    """Train alternately with this project's job and the bare loop, with the batch that fills the card."""
    batch = bench.filled.batch_size
    ours, bare = [], []
    for number in range(bench.effort.rounds):
        for name in ("ours", "bare") if number % 2 == 0 else ("bare", "ours"):
            if name == "ours":
                ours.append(job.measure(bench.launcher, bench.config(batch), bench.effort.window))
            else:
                bare.append(_bare(bench, batch))
        words = f"round {number + 1}: {ours[-1]}, bare {bare[-1]['samples_per_s']:.1f} samples/s"
        print(f"{bench.name}, {words}", file=sys.stderr, flush=True)
    return compared(bench, ours, bare)


def compared(bench: Bench, ours: Sequence[Rates], bare: Sequence[Mapping[str, Any]]) -> Found:
    """Return rates, ratios and utilisation of all rounds."""
    case, card = bench.case, str(bare[0]["device_name"])
    spec = case.dataset(bench.data).spec()
    flop = cards.flop_per_sample(case.model, case.model_size, spec)
    rates = {
        "ours": [one.samples_per_s for one in ours],
        "ours, in the steps alone": [one.samples_per_s_in_steps for one in ours],
        "bare": [float(one["samples_per_s"]) for one in bare],
    }
    ratios = {
        name: summary([one / other for one, other in zip(values, rates["bare"], strict=True)])
        for name, values in rates.items()
        if name != "bare"
    }
    used = {name: cards.utilisation(statistics.median(values), flop, card) for name, values in rates.items()}
    return {
        "card": card,
        "peak_tflops": cards.peak_tflops(card) or "unknown",
        "batch": vars(bench.filled),
        f"{case.unit}_per_s": {
            name: summary([value * case.units_per_sample for value in values])
            for name, values in rates.items()
        },
        "ratio_to_bare": ratios,
        "model_flop_utilisation": {
            name: "unknown" if share is None else round(share, 4) for name, share in used.items()
        },
        "flop_per_sample": flop,
        "formula": cards.MFU_FORMULA,
        "last_losses": {"ours": ours[-1].last_loss, "bare": bare[-1]["last_loss"]},
        "target": f"at least {LEAST_SPEED} x bare",
        "verdict": _verdict(bench, is_met=ratios["ours"]["median"] >= LEAST_SPEED),
    }


def watching(bench: Bench) -> Found:
    """Train one job with telemetry, reports and events alternately on and off."""
    effort = bench.effort
    notes = bench.run_probe(
        bench.filled.batch_size,
        "watching",
        warm_up=effort.window.warm_up,
        num_pairs=effort.rounds,
        seconds=effort.block_s,
    )
    pairs = zip(notes["on_step_s"], notes["off_step_s"], strict=True)
    costs = summary([with_it / without - 1 for with_it, without in pairs], digits=5)
    return {
        "batch": vars(bench.filled),
        "steps_a_block": notes["steps_a_block"],
        "step_s_with": summary(notes["on_step_s"], digits=6),
        "step_s_without": summary(notes["off_step_s"], digits=6),
        "cost": costs,
        "target": f"at most {MOST_COST_OF_WATCHING:.1%}",
        "verdict": _verdict(bench, is_met=costs["median"] <= MOST_COST_OF_WATCHING),
    }


def waits(bench: Bench) -> Found:
    """Count calls that wait for the GPU in a profiler trace, in steps with and without a report.

    Raises:
        RuntimeError: the trace lacks calls that must occur, so the absence of others proves nothing.
    """
    effort = bench.effort
    notes = bench.run_probe(
        bench.case.small_batch,
        "waits",
        warm_up=effort.traced_warm_up,
        num_steps=effort.traced_steps,
    )
    found = {name: traces.Waits(**values) for name, values in notes.items()}
    quiet, reported = found[traces.QUIET], found[traces.REPORTED]
    if bench.device == "cuda" and not (quiet.num_steps and reported.num_steps and reported.calls):
        raise RuntimeError(f"this trace proves nothing: {found}")
    return {
        "batch_size": bench.case.small_batch,
        "steps": {name: kind.num_steps for name, kind in found.items()},
        "calls_a_step": {name: kind.a_step() for name, kind in found.items()},
        "launches_a_quiet_step": round(quiet.num_launches / max(1, quiet.num_steps), 1),
        "least_handed_out_at_a_wait": reported.least_handed_out,
        "target": f"none in {traces.QUIET}; else only with most of another step handed out",
        "verdict": _verdict(bench, is_met=not quiet.calls and traces.waits_with_work_ahead(found)),
    }


def checkpoint(bench: Bench) -> Found:
    """Compare the time for which a checkpoint blocks training with one copy of the same number of bytes."""
    config = bench.config(bench.case.small_batch)
    stalls, size_bytes = job.checkpoint_stalls(bench.launcher, config, bench.effort.rounds)
    arguments = ["--bytes", str(size_bytes), "--times", str(bench.effort.rounds)]
    copies = bench.run_beside("benchmarks.gpu.copying", *arguments)
    ratio = statistics.median(stalls) / statistics.median(copies)
    return {
        "size_bytes": size_bytes,
        "stall_s": summary(stalls, digits=5),
        "one_copy_s": summary(copies, digits=5),
        "ratio_of_medians": round(ratio, 3),
        "target": f"at most {MOST_COPIES} x one copy",
        "verdict": _verdict(bench, is_met=ratio <= MOST_COPIES),
    }


def _bare(bench: Bench, batch_size: int) -> dict[str, Any]:
    window = bench.effort.window
    arguments = ["--case", bench.name, "--data", str(bench.data), "--batch-size", str(batch_size)]
    arguments += ["--warm-up", str(window.warm_up), "--seconds", str(window.seconds)]
    if bench.compile_mode is not None:
        arguments += ["--compile-mode", bench.compile_mode]
    if bench.is_tiny:
        arguments.append("--tiny")
    found: dict[str, Any] = bench.run_beside("benchmarks.gpu.bare", *arguments)
    return found


def _verdict(bench: Bench, *, is_met: bool) -> str:
    if bench.device != "cuda" or bench.is_tiny:
        return SMOKE
    return "met" if is_met else "missed"
