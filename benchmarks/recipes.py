"""The form's default values on every data set and model of the catalogue, compared with scikit-learn.

    python -m benchmarks.recipes [--only iris,digits:vit] [--seeds 3] [--ranks 2] [--into FILE] [--table]

Trains each pair through the real engine on CPU ranks with the values of `ddp_gui/plan/recipe.py`, and a
simple baseline on the same split: logistic regression on standardised columns or pixels, least squares,
logistic regression on a bag of words (TF-IDF; for names of people, of characters), a trigram model of
characters. Measured rows replace those of the file, from which the form takes its figures, and the table of
docs/recipes.md. `--table` writes the table without measuring. Seconds are CPU seconds divided by the number
of ranks, because wall-clock time includes other load on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import plan, recipe
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource, default_cache_file
from tests.harness import Launcher
from trainers import registry
from trainers.contract import events, rundir
from trainers.data import LANGUAGE_MODELLING, TABULAR_REGRESSION, TEXT_CLASSIFICATION, DataOptions
from trainers.data.text import CharacterTokenizer
from trainers.files.plain_files import REPOSITORY

DOCS = REPOSITORY / "docs" / "recipes.md"
BEGIN, END = (f"<!-- made by benchmarks/recipes.py: {edge} -->" for edge in ("begin", "end"))
RUN_TIMEOUT_S = 1800.0
NUM_RESAMPLED = 1000
METRICS = {TABULAR_REGRESSION: "R²", LANGUAGE_MODELLING: "perplexity"}
MACHINE = Machine(num_gpus=0, num_cores=2)
# Shares of the trigram, bigram, unigram and uniform distributions in the baseline for running text.
MIXED = (0.7, 0.2, 0.09, 0.01)

Row = dict[str, Any]


def main() -> None:
    """Measure the selected pairs, store them, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="DATASET or DATASET:MODEL, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--into", type=Path, default=recipe.MEASURED)
    parser.add_argument("--table", action="store_true", help="write the table, measure nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    rows: list[Row] = json.loads(options.into.read_text("utf-8"))["rows"] if options.into.exists() else []
    if not options.table:
        catalogue = CatalogueSource(default_cache_file()).get()
        registry.discover_all()
        asked = [each for each in options.only.split(",") if each]
        known: dict[tuple[str, bool], tuple[float, float, str]] = {}
        for dataset, model in pairs(catalogue, asked):
            row = measure(catalogue, dataset, model, options.seeds, options.ranks, known)
            print(shown(row), file=sys.stderr, flush=True)
            rows = [each for each in rows if (each["dataset"], each["model"]) != (dataset, model)] + [row]
            rows.sort(key=lambda each: (each["task"], each["dataset"], each["model"]))
            options.into.write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n")
    print(table(rows))
    if options.into == recipe.MEASURED:
        write_table(table(rows))


def write_table(made: str) -> None:
    """Replace the table of docs/recipes.md."""
    page = DOCS.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    DOCS.write_text(f"{head}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}", "utf-8")


def pairs(catalogue: Catalogue, asked: list[str]) -> Iterator[tuple[str, str]]:
    """Yield data set and model, without models that start from a folder or need a package."""
    for dataset in catalogue.datasets:
        for model in catalogue.models_for(dataset):
            is_asked = not asked or dataset in asked or f"{dataset}:{model.name}" in asked
            if is_asked and not model.may_have_path:
                yield dataset, model.name


def measure(
    catalogue: Catalogue,
    dataset: str,
    model: str,
    num_seeds: int,
    num_ranks: int,
    known: dict[tuple[str, bool], tuple[float, float, str]],
) -> Row:
    """Train a pair with each seed and return its row.

    Args:
        known: baselines computed before, by data set and whether the model ignores order.
    """
    values, seconds = [], []
    about = catalogue.datasets[dataset]
    for seed in range(num_seeds):
        raw = {"dataset": dataset, "model": model, "nproc_per_node": num_ranks, "device": "cpu", "seed": seed}
        config = recipe.complete(plan.parse(raw, MACHINE), catalogue, raw)
        planned = plan.make(config, catalogue, MACHINE)
        value, taken_s = train(planned.config, about.task)
        values.append(value)
        seconds.append(taken_s / num_ranks)
    is_bag = model == "bag_of_words"
    if (dataset, is_bag) not in known:
        known[dataset, is_bag] = baseline(dataset, is_bag=is_bag)
    reached, error, name = known[dataset, is_bag]
    return {
        "task": about.task,
        "dataset": dataset,
        "model": model,
        "metric": METRICS.get(about.task, "accuracy"),
        "mean": round(statistics.mean(values), 4),
        "each": [round(value, 4) for value in values],
        "baseline": round(reached, 4),
        "standard_error": round(error, 4),
        "baseline_name": name,
        "seconds": round(statistics.mean(seconds), 1),
        "num_steps": planned.num_steps,
        "num_ranks": num_ranks,
        "values": {name: getattr(planned.config, name) for name in recipe.FIELDS},
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def train(config: Any, task: str) -> tuple[float, float]:
    """Run a configuration to its end. Return the metric of its last evaluation and its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        # A forked supervisor would be no child of this process: its CPU seconds would not be counted.
        launcher = Launcher(Path(folder), REPOSITORY)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        live = launcher.start_run(rundir.create(launcher.runs_dir, config))
        try:
            status = live.wait_for_end(RUN_TIMEOUT_S)
            if status.state != "finished":
                raise RuntimeError(f"the run did not finish: {live.story()}")
            last = live.events("eval")[-1]["metrics"]
        finally:
            launcher.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if task == TABULAR_REGRESSION:
        return float(last["r2"]), taken_s
    return float(last[events.primary_metric(last) or ""]), taken_s


def baseline(name: str, *, is_bag: bool) -> tuple[float, float, str]:
    """Return a simple model's result on the data set's split, its standard error, and the model's name."""
    dataset: Any = registry.datasets()[name].create(DataOptions())
    spec, (train_split, held) = dataset.spec(), dataset.load(torch.device("cpu"))
    if spec.task == LANGUAGE_MODELLING:
        return trigram(train_split, held, spec.vocabulary_size)
    (inputs, targets), (held_inputs, truth) = (
        split.batch(torch.arange(len(split))) for split in (train_split, held)
    )
    if spec.task == TEXT_CLASSIFICATION:
        is_characters = (
            spec.decode is not None
            and hasattr(spec.decode, "__self__")
            and isinstance(spec.decode.__self__, CharacterTokenizer)
        )
        reader = TfidfVectorizer(
            analyzer="char" if is_characters else "word",
            ngram_range=(1, 3) if is_characters and not is_bag else (1, 1),
        )
        features = reader.fit_transform(train_split.texts)
        model = LogisticRegression(max_iter=300).fit(features, targets.numpy())
        right = model.predict(reader.transform(held.texts)) == truth.numpy()
        unit = ("characters" if is_bag else "1 to 3 characters") if is_characters else "words"
        return *share(right), f"logistic regression, bag of {unit}"
    features, held_features = (
        split.prepare(each).flatten(1).numpy() for split, each in ((train_split, inputs), (held, held_inputs))
    )
    if spec.task == TABULAR_REGRESSION:
        predicted = LinearRegression().fit(features, targets.numpy()).predict(held_features)
        return *r_squared(predicted, truth.numpy()), "least squares"
    model = LogisticRegression(max_iter=300).fit(features, targets.numpy())
    return *share(model.predict(held_features) == truth.numpy()), "logistic regression"


def share(right: Any) -> tuple[float, float]:
    """Return a share and its binomial standard error."""
    mean = float(np.mean(right))
    return mean, (mean * (1 - mean) / len(right)) ** 0.5


def r_squared(predicted: Any, truth: Any) -> tuple[float, float]:
    """Return R² and its standard error by bootstrap."""

    def of(rows: Any) -> float:
        residual = ((predicted[rows] - truth[rows]) ** 2).sum()
        return float(1 - residual / ((truth[rows] - truth[rows].mean()) ** 2).sum())

    generator = np.random.default_rng(0)
    drawn = [of(generator.integers(0, len(truth), len(truth))) for _ in range(NUM_RESAMPLED)]
    return of(np.arange(len(truth))), float(np.std(drawn))


def trigram(train_split: Any, held: Any, num_tokens: int) -> tuple[float, float, str]:
    """Return the perplexity of mixed 3-, 2- and 1-gram frequencies, and the standard error over passages."""
    text, unseen = (split.batch(torch.arange(len(split)))[1].numpy() for split in (train_split, held))
    flat = text.reshape(-1)
    one = np.bincount(flat, minlength=num_tokens) / len(flat)
    two = np.zeros((num_tokens, num_tokens))
    np.add.at(two, (flat[:-1], flat[1:]), 1)
    three = np.zeros((num_tokens, num_tokens, num_tokens))
    np.add.at(three, (flat[:-2], flat[1:-1], flat[2:]), 1)
    two /= np.maximum(two.sum(-1, keepdims=True), 1)
    three /= np.maximum(three.sum(-1, keepdims=True), 1)
    before, last, following = unseen[:, :-2], unseen[:, 1:-1], unseen[:, 2:]
    mixed = (three[before, last, following], two[last, following], one[following], 1 / num_tokens)
    losses = -np.log(sum(weight * each for weight, each in zip(MIXED, mixed, strict=True))).mean(-1)
    perplexity = float(np.exp(losses.mean()))
    return perplexity, perplexity * float(losses.std()) / len(losses) ** 0.5, "trigrams of characters"


def shown(row: Row) -> str:
    """Return a row of the table."""
    digits = 3 if row["metric"] != "perplexity" else 2
    each = ", ".join(f"{value:.{digits}f}" for value in row["each"])
    return (
        f"| `{row['dataset']}` | `{row['model']}` | {row['mean']:.{digits}f} ({each}) "
        f"| {row['baseline']:.{digits}f} ± {row['standard_error']:.{digits}f} "
        f"| {'yes' if holds(row) else '**no**'} | {row['num_steps']:,} | {row['seconds']:.0f} |"
    )


def holds(row: Row) -> bool:
    """Return True if a row is at most one standard error worse than the baseline."""
    sign = -1 if row["metric"] == "perplexity" else 1
    return bool(sign * (row["mean"] - row["baseline"]) >= -row["standard_error"])


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown, with the baselines' names below."""
    head = [
        "| data set | model | ours: mean (each seed) | baseline ± standard error | holds | steps | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(shown, rows)])


if __name__ == "__main__":
    main()
