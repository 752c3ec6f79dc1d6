"""Tests of job resources: parsing sinfo, validation, and the choices in the form."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.trainers.engines.slurm.test_slurm import put
from trainers.contract.config import Config
from trainers.engines.site_file import SiteError
from trainers.engines.slurm import client, script, site
from trainers.engines.slurm.endings import SlurmError
from trainers.engines.slurm.engine import SlurmEngine

# Output of sinfo in Slurm 22.05 without padding; the fields are those of `partitions.COLUMNS`.
ROWS = (
    "lab*|up|3|idle|8|16000|1-00:00:00|1-infinite|(null)|gpu:0|",
    "lab*|up|1|mixed|4|8000|1-00:00:00|1-infinite|(null)|gpu:0|",
    "gpu|up|2|mixed|64|512000|12:00:00|1-2|gpu:a100:4(S:0-1),nvme:1|gpu:a100:3(IDX:0-1,3),nvme:0|",
    "gpu|up|1|idle|32|256000|12:00:00|1-2|gpu:v100:2|gpu:v100:0(IDX:N/A)|",
    "gpu|up|1|down*|64|512000|12:00:00|1-2|gpu:a100:8|gpu:a100:0(IDX:N/A)|",
    "old|down|1|drained|4|8000|infinite|1|gpu:1|gpu:(null):0(IDX:N/A)|",
)
SITE = """
[slurm.partition]
allowed = ["gpu", "lab"]
default = "gpu"
[slurm.account]
fixed = "physics"
[slurm.qos]
hidden = true
[slurm.time_limit]
default = "04:00:00"
maximum = "8:00:00"
[slurm.memory_gb]
maximum = 64
[slurm.num_nodes]
maximum = 2
[slurm.extra_lines]
fixed = ["--constraint=ib"]
allowed = ["--exclusive", "--reservation=course"]
"""
HOSTILE = ("a'b", 'a"b', "$(touch pwned)", "`x`", "two\nlines", "50%j", "a b", "--wrap=x", "ü\u2028x", "a;b")

MakeEngine = Callable[..., SlurmEngine]


@pytest.fixture
def make(tmp_path: Path) -> MakeEngine:
    """Return a function that creates an engine, whose fake cluster answers `ROWS`, for a site file."""

    def made(text: str | None = None, rows: tuple[str, ...] = ROWS) -> SlurmEngine:
        said = "\n".join(line.replace("|", " |") for line in rows)
        (tmp_path / "said").write_text(said + "\n")
        file = tmp_path / "site.toml"
        file.write_text(text or "")
        return SlurmEngine(
            put(tmp_path, "sinfo", f"cat {tmp_path}/said"), site_file=None if text is None else file
        )

    return made


def allowed(engine: SlurmEngine, config: Config) -> dict[str, str]:
    """Return the allowed values of each rejected field."""
    return {problem.field: problem.allowed for problem in engine.check(config)}


def test_partitions_are_summed_over_their_rows(tmp_path: Path) -> None:
    (tmp_path / "said").write_text("\n".join(ROWS))
    lab, gpu, old = put(tmp_path, "sinfo", f"cat {tmp_path}/said").partitions()
    assert (lab.name, lab.is_default, lab.num_nodes, lab.num_idle, lab.num_cores) == ("lab", True, 4, 3, 4)
    assert lab.memory_bytes == 8000 * 2**20 and lab.gpu_types() == [] and lab.time_limit_s == 86_400
    assert gpu.gpu_types() == ["a100", "v100"] and gpu.max_nodes_per_job == 2 and gpu.num_idle == 1
    # GPUs of a node that is down are counted, but not as free.
    assert gpu.gpus("a100") == (2, 16) and gpu.gpus("v100") == (2, 2) and gpu.gpus() == (4, 18)
    assert (old.is_up, old.time_limit_s, old.max_nodes_per_job, old.gpus()) == (False, math.inf, 1, (0, 1))
    assert client.partition_text(gpu) == (
        "gpu: 4 nodes, 1 idle; 2 of 16 a100 GPUs free; 2 of 2 v100 GPUs free; up to 12 h"
    )
    assert client.partition_text(lab) == "lab: 4 nodes, 3 idle; no GPUs; up to 24 h"
    assert client.partition_text(old).endswith(
        "0 of 1 GPUs free; no time limit; starts no jobs at the moment"
    )


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("90", 5400), ("30:00", 1800), ("1:30:00", 5400), ("2-0", 172_800), ("1-12:30", 131_400),
        ("1-00:00:30", 86_430), ("infinite", math.inf), ("UNLIMITED", math.inf),
    ],
)  # fmt: skip
def test_time_limits_are_read_as_slurm_does(text: str, limit_s: float) -> None:
    assert client.parse_duration(text) == limit_s


def test_an_answer_of_sinfo_that_is_not_known_is_an_error_in_words(make: MakeEngine) -> None:
    with pytest.raises(SlurmError, match="sinfo gave unexpected output"):
        make(rows=("lab*|up|many|idle|8|16000|1:00|1|(null)||",)).capacity()
    with pytest.raises(SlurmError, match="the cluster has no partition"):
        make(rows=()).capacity()
    with pytest.raises(SlurmError, match="no partition that the site file allows: x"):
        make('[slurm.partition]\nallowed = ["x"]').capacity()


def test_what_a_partition_cannot_give_is_refused_in_words(make: MakeEngine) -> None:
    engine = make()
    one = Config(nproc_per_node=1)
    assert engine.check(one) == [] and engine.check(replace(one, partition="gpu", num_nodes=2)) == []
    assert allowed(engine, replace(one, partition="GPU")) == {"partition": "one of lab, gpu, old"}
    assert allowed(engine, replace(one, num_nodes=5)) == {
        "num_nodes": "1 to 4, the maximum number of nodes per job in partition lab"
    }
    assert "num_nodes" in allowed(engine, replace(one, partition="gpu", num_nodes=3))
    four = Config(partition="gpu", num_nodes=2, nproc_per_node=5)
    assert allowed(engine, four) == {
        "nproc_per_node": "at most 4, the maximum of GPUs on each of 2 nodes in partition gpu"
    }
    assert engine.check(replace(four, device="cpu")) == []
    assert allowed(engine, Config(nproc_per_node=9)) == {
        "nproc_per_node": "at most 8, the maximum of cores in partition lab"
    }
    assert allowed(engine, replace(one, device="cuda")) == {
        "device": "auto or cpu: partition lab has no GPUs"
    }
    assert allowed(engine, replace(four, gpu_type="h100")) == {"gpu_type": "one of a100, v100, or empty"}
    few = allowed(engine, replace(four, num_nodes=1, gpu_type="v100"))
    assert "the maximum of v100 GPUs in" in few["nproc_per_node"]
    assert allowed(engine, replace(one, memory_gb=16)) == {
        "memory_gb": "at most 15, the maximum of memory in partition lab"
    }
    for limit, words in {
        "2-0": "at most 24 h: the partition's limit",
        "1h": client.DURATION_FORMAT,
        "0": "minutes",
    }.items():
        assert allowed(engine, replace(one, time_limit=limit))["time_limit"].startswith(words)


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_of_each_field_are_refused_or_quoted(
    make: MakeEngine, tmp_path: Path, value: str
) -> None:
    engine = make()
    for name in ("partition", "gpu_type", "time_limit", "account", "qos", "extra_lines"):
        config = replace(Config(nproc_per_node=1, partition="gpu"), **{name: value})
        assert name in allowed(engine, config), name
        # Without the form nothing is validated, but each value must remain a single option value.
        text = ""
        with contextlib.suppress(ValueError):
            text = script.batch_script(config, tmp_path, None, gres="gpu:1", max_restarts=3)
        if not text:
            continue
        head = text.partition("\n# Each node has one launcher")[0].splitlines()
        assert all(line.startswith(("#!", "#SBATCH --")) for line in head)
        options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))
        option = {"time_limit": "time", "gpu_type": "gres"}.get(name, name)
        if name not in ("gpu_type", "extra_lines"):
            assert shlex.split(options[option]) == [value]


def test_the_script_says_where_as_the_site_has_it(make: MakeEngine, tmp_path: Path) -> None:
    chosen = Config(
        nproc_per_node=2, num_nodes=2, gpu_type="a100", memory_gb=32, extra_lines="--exclusive", qos="long"
    )
    text = make(SITE).script(chosen, tmp_path)
    for line in (
        "partition=gpu", "gres=gpu:a100:2", "time=04:00:00", "mem=32G", "account=physics", "qos=long",
        "constraint=ib", "exclusive", "nodes=2",
    ):  # fmt: skip
        assert f"\n#SBATCH --{line}\n" in text
    plain = make().script(Config(), tmp_path)
    assert not re.search("--(partition|gres|time|mem|account|qos|constraint)", plain.partition("\nset -u")[0])
    on_cpu = make().script(Config(partition="gpu", device="cpu"), tmp_path)
    assert "--gres" not in on_cpu and "--partition=gpu" in on_cpu


def test_what_an_administrator_does_not_allow_is_refused_in_words(make: MakeEngine) -> None:
    engine = make(SITE)
    one = Config(nproc_per_node=1)
    assert engine.check(one) == [] and engine.check(replace(one, account="physics")) == []
    wrong = replace(one, partition="old", account="art", num_nodes=3, memory_gb=65, time_limit="9:00:00")
    found = allowed(engine, replace(wrong, extra_lines="--exclusive\n--nodelist=n1"))
    assert found["account"] == "physics, or empty: the administrator has fixed this value"
    assert found["memory_gb"] == "at most 64: the administrator's limit"
    assert found["num_nodes"] == "at most 2: the administrator's limit"
    assert found["extra_lines"] == "--exclusive or --reservation=course"
    assert found["partition"].startswith("one of gpu, lab")
    assert allowed(engine, replace(one, time_limit="9:00:00")) == {
        "time_limit": "at most 8 h: the administrator's limit"
    }
    nothing = allowed(make(), replace(one, extra_lines="--exclusive"))
    assert nothing == {"extra_lines": "none, because the administrator allows no additional options"}


def test_the_form_asks_for_what_the_site_leaves_open(make: MakeEngine) -> None:
    asked = make(SITE).capacity().placement_fields
    assert set(asked) == {"partition", "num_nodes", "gpu_type", "time_limit", "memory_gb", "extra_lines"}
    assert [choice.value for choice in asked["partition"].choices] == ["gpu", "lab"]
    assert asked["partition"].default == "gpu" and asked["time_limit"].default == "04:00:00"
    lines = [choice.value for choice in asked["extra_lines"].choices]
    assert lines == ["--exclusive", "--reservation=course"]
    types = make().capacity(Config(partition="gpu")).placement_fields["gpu_type"].choices
    assert [choice.value for choice in types] == ["", "a100", "v100"]
    free = make().capacity().placement_fields
    assert {"account", "qos"} <= set(free) and free["account"].choices == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitions = 1", "has 'partitions' in [slurm]; allowed: partition, num_nodes"),
        (
            "[slurm.account]\nfixed = 'a'\ndefault = 'b'",
            "[slurm.account]: fixed cannot be combined with default or allowed",
        ),
        ("[slurm.qos]\nallowed = ['a']\ndefault = 'b'", "[slurm.qos]: default is 'b'; allowed: \"a\""),
        ("[slurm.time_limit]\nmaximum = '1h'", "[slurm.time_limit]: '1h' is not a time limit"),
        ("[slurm.extra_lines]\nallowed = ['constraint=ib']", "'constraint=ib' is not an option"),
    ],
)
def test_a_wrong_site_file_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f"[slurm]\n{text}\n".replace("'--x=a\\nb'", '"--x=a\\nb"'))
    with pytest.raises(SiteError) as refused:
        site.read(file)
    assert str(file) in str(refused.value) and words in str(refused.value)


def test_the_example_of_the_docs_is_read_and_makes_start_work_without_a_click(
    make: MakeEngine, tmp_path: Path, repository: Path
) -> None:
    page = (repository / "docs" / "site.md").read_text(encoding="utf-8")
    example = page.partition("<!-- example: begin -->\n```toml\n")[2].partition("```\n<!-- example: end")[0]
    rows = tuple(row.replace("lab*", "cpu*") for row in ROWS)
    engine = make(example, rows)
    asked = set(engine.capacity().placement_fields)
    assert asked == {"partition", "num_nodes", "time_limit", "memory_gb", "extra_lines"}
    config = Config(nproc_per_node=1)
    assert engine.check(config) == []
    text = engine.script(config, tmp_path)
    for line in ("partition=gpu", "gres=gpu:1", "time=04:00:00", "mem=32G", "account=teaching"):
        assert f"\n#SBATCH --{line}\n" in text
    assert "exclusive" not in text
