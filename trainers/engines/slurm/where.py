"""Requests of a job: checked before it is submitted, and offered by the form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from trainers.contract.config import Config, Problem
from trainers.engines.base import Capacity, PlacementChoice, PlacementField
from trainers.engines.slurm import client
from trainers.engines.slurm.client import Partition
from trainers.engines.slurm.endings import SlurmError
from trainers.engines.slurm.site import NameRule, NumberRule, SlurmSite, TimeRule, is_name

GB = 2**30  # GiB: Slurm's unit
NAME_FIELDS = ("account", "qos")


class PartitionPlacement:
    """The partitions of one cluster, restricted by the rules of a site.

    Args:
        ask: Returns the partitions; may raise SlurmError.
    """

    def __init__(self, ask: Callable[[], list[Partition]], site: SlurmSite) -> None:
        self._ask, self._site = ask, site

    def partitions(self) -> list[Partition]:
        """Return the partitions that users may choose, default first.

        Raises:
            SlurmError: If no partition exists, or the controller has not answered yet.
        """
        allowed = _allowed_values(self._site.partition)
        partitions = [partition for partition in self._ask() if not allowed or partition.name in allowed]
        if not partitions:
            allowed_text = f" that the site file allows: {', '.join(allowed)}" if allowed else ""
            raise SlurmError(f"the cluster has no partition{allowed_text}")
        default = self._site.partition.default
        return sorted(
            partitions,
            key=lambda partition: partition.name != default if default else not partition.is_default,
        )

    def partition_of(self, config: Config) -> Partition:
        """Return the configuration's partition; the default if it names none or an unknown one."""
        partitions = self.partitions()
        name = self._site.apply(config).partition
        return next((partition for partition in partitions if partition.name == name), partitions[0])

    def capacity(self, config: Config) -> Capacity:
        """Return the capacity of the configuration's partition, for a run on its number of nodes."""
        partition = self.partition_of(config)
        num_nodes = min(config.num_nodes, partition.max_nodes_per_job)
        kind = self._site.apply(config).gpu_type
        if kind not in partition.gpu_types():
            kind = client.ANY_TYPE
        num_gpus = partition.max_on_nodes(num_nodes, lambda group: group.num_gpus(kind))
        names = [kind] if kind else [name for name in partition.gpu_types() if name]
        return Capacity(
            num_nodes=partition.max_nodes_per_job,
            num_gpus=num_gpus,
            num_cores=partition.max_on_nodes(num_nodes, lambda group: group.num_cores),
            gpu_names=tuple(names) * num_gpus if len(names) == 1 else tuple(names),
            memory_bytes=partition.memory_bytes,
            place=f"a node of partition {partition.name}",
            has_more_ranks_than_cores=False,
            placement_fields=self._placement_fields(config),
        )

    def gres(self, config: Config) -> str:
        """Return the resources that a job requests per node besides cores, in Slurm's format, or empty."""
        if config.device == "cpu" or not self.partition_of(config).gpu_types():
            return ""
        kind = self._site.apply(config).gpu_type
        return f"gpu:{kind}:{config.nproc_per_node}" if kind else f"gpu:{config.nproc_per_node}"

    def problems(self, config: Config) -> list[Problem]:
        """Return the values that the cluster or the site would reject. The current load does not matter."""
        return [*self._site_problems(config), *self._partition_problems(config)]

    def _site_problems(self, config: Config) -> Iterator[Problem]:
        for name, rule in self._site.rules().items():
            value = getattr(config, name)
            if rule.fixed is not None and value not in (None, "", rule.fixed):
                yield _problem(
                    config, name, f"{rule.fixed}, or empty: the administrator has fixed this value"
                )
            elif isinstance(rule, NameRule) and rule.allowed and value not in ("", *rule.allowed):
                yield _problem(config, name, f"one of {', '.join(rule.allowed)}, or empty")
        for name, maximum in (
            ("num_nodes", self._site.num_nodes.maximum),
            ("memory_gb", self._site.memory_gb.maximum),
        ):
            if maximum is not None and (getattr(config, name) or 0) > maximum:
                yield _problem(config, name, f"at most {maximum}: the administrator's limit", maximum)
        for name in NAME_FIELDS:
            if (value := getattr(config, name)) and not is_name(value):
                yield _problem(config, name, "a name of letters, digits, and . _ @ + -")
        lines = self._site.extra_lines
        if not set(config.extra_lines.splitlines()) <= {*lines.fixed, *lines.allowed}:
            allowed_lines = (
                " or ".join(lines.allowed) or "none, because the administrator allows no additional options"
            )
            yield _problem(config, "extra_lines", allowed_lines)

    def _partition_problems(self, config: Config) -> Iterator[Problem]:
        config = self._site.apply(config)
        names = [partition.name for partition in self.partitions()]
        if config.partition and config.partition not in names:
            yield _problem(config, "partition", f"one of {', '.join(names)}")
            return
        partition = self.partition_of(config)
        if config.num_nodes > partition.max_nodes_per_job:
            maximum = partition.max_nodes_per_job
            allowed = f"1 to {maximum}, the maximum number of nodes per job in partition {partition.name}"
            yield _problem(config, "num_nodes", allowed, maximum)
            return
        yield from _node_problems(config, partition)
        yield from self._time_problems(config, partition)

    def _time_problems(self, config: Config, partition: Partition) -> Iterator[Problem]:
        try:
            requested_s = client.parse_duration(config.time_limit)
        except ValueError:
            requested_s = math.nan
        site_limit_s = client.parse_duration(self._site.time_limit.maximum)
        max_s = min(partition.time_limit_s, site_limit_s)
        if math.isnan(requested_s) or (config.time_limit and math.isinf(requested_s)) or requested_s == 0:
            yield _problem(config, "time_limit", f"{client.DURATION_FORMAT}; or empty")
        elif config.time_limit and requested_s > max_s:
            source = (
                "the administrator's limit"
                if site_limit_s < partition.time_limit_s
                else "the partition's limit"
            )
            yield _problem(config, "time_limit", f"at most {client.duration_text(max_s)}: {source}")

    def _placement_fields(self, config: Config) -> dict[str, PlacementField]:
        """Return the fields that the form offers."""
        site = self._site
        fields = {
            name: PlacementField(default=rule.default, choices=self._choices(name, rule, config))
            for name, rule in site.rules().items()
            if not rule.hidden and rule.fixed is None
        }
        if "partition" in fields:
            fields["partition"] = replace(fields["partition"], default=self.partitions()[0].name)
        if site.num_nodes.maximum != 1:
            fields["num_nodes"] = PlacementField(default=1)
        if lines := site.extra_lines.allowed:
            choices = tuple(PlacementChoice(value=line, label=line) for line in lines)
            default = "\n".join(site.extra_lines.default)
            fields["extra_lines"] = PlacementField(default=default, choices=choices, is_several=True)
        return fields

    def _choices(
        self, name: str, rule: NameRule | TimeRule | NumberRule, config: Config
    ) -> tuple[PlacementChoice, ...]:
        if name == "partition":
            partitions = self.partitions()
            return tuple(
                PlacementChoice(value=partition.name, label=client.partition_text(partition))
                for partition in partitions
            )
        if name == "gpu_type":
            partition = self.partition_of(config)
            allowed = _allowed_values(self._site.gpu_type) or partition.gpu_types()
            kinds = [kind for kind in partition.gpu_types() if kind and kind in allowed]
            free = {kind: "{} of {} free".format(*partition.gpus(kind)) for kind in kinds}
            return (
                PlacementChoice(value="", label="any free GPU"),
                *(PlacementChoice(value=kind, label=f"{kind}: {free[kind]}") for kind in kinds),
            )
        if not isinstance(rule, NameRule):
            return ()
        default_choices = (
            () if rule.default or not rule.allowed else (PlacementChoice(value="", label="your default"),)
        )
        return (*default_choices, *(PlacementChoice(value=value, label=value) for value in rule.allowed))


def _node_problems(config: Config, partition: Partition) -> Iterator[Problem]:
    """Yield requests that too few nodes of the partition can satisfy."""
    nodes_text = "" if config.num_nodes == 1 else f" on each of {config.num_nodes} nodes"
    name = f"partition {partition.name}"
    kinds = [kind for kind in partition.gpu_types() if kind]
    if config.gpu_type and config.gpu_type not in kinds:
        allowed = (
            f"one of {', '.join(kinds)}, or empty"
            if kinds
            else f"empty, because {name} has no GPUs with a type"
        )
        yield _problem(config, "gpu_type", allowed)
        return
    uses_gpus = config.device != "cpu" and bool(partition.gpu_types())
    if config.device == "cuda" and not uses_gpus:
        yield _problem(config, "device", f"auto or cpu: {name} has no GPUs")
        return
    kind = f"{config.gpu_type} GPUs" if config.gpu_type else "GPUs"
    max_gpus = partition.max_on_nodes(config.num_nodes, lambda group: group.num_gpus(config.gpu_type))
    max_cores = partition.max_on_nodes(config.num_nodes, lambda group: group.num_cores)
    if uses_gpus and config.nproc_per_node > max_gpus:
        allowed_text = f"at most {max_gpus}, the maximum of {kind}{nodes_text} in {name}"
        yield _problem(config, "nproc_per_node", allowed_text, max_gpus or None)
    elif config.nproc_per_node > max_cores:
        allowed_text = f"at most {max_cores}, the maximum of cores{nodes_text} in {name}"
        yield _problem(config, "nproc_per_node", allowed_text, max_cores or None)
    max_gb = partition.max_on_nodes(config.num_nodes, lambda group: group.memory_bytes) // GB
    if config.memory_gb is not None and config.memory_gb > max_gb:
        yield _problem(
            config,
            "memory_gb",
            f"at most {max_gb}, the maximum of memory{nodes_text} in {name}",
            max_gb or None,
        )


def _allowed_values(rule: NameRule) -> tuple[str, ...]:
    """Return the only values that a rule allows; empty: any."""
    return rule.allowed if rule.fixed is None else (rule.fixed,)


def _problem(config: Config, name: str, allowed: str, suggestion: int | None = None) -> Problem:
    value: Any = getattr(config, name)
    return Problem(field=name, value=value, allowed=allowed, suggestion=suggestion)
