"""The contracts: one abstract class per kind of plugin, and the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from areal_lit.contracts.algorithm import Algorithm
from areal_lit.contracts.callback import Callback
from areal_lit.contracts.component import Component
from areal_lit.contracts.data import PREVIEWED, DataModule, Preview, Source
from areal_lit.contracts.filter import Filter
from areal_lit.contracts.inference import InferenceBackend, LogprobDistribution
from areal_lit.contracts.launcher import Death, GroupSpec, Launcher, Process, ProcessDied, ProcessSpec, WorkerGroup
from areal_lit.contracts.logger import RunLogger
from areal_lit.contracts.optimizer import Optimizer
from areal_lit.contracts.reward import GroupReward, Reward, Score
from areal_lit.contracts.row_sampler import RowSampler
from areal_lit.contracts.strategy import Bucket, Head, Output, Rank, Snapshot, Strategy
from areal_lit.contracts.transport import Receiver, WeightTransport
from areal_lit.contracts.workflow import Episode, Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of component: its entry-point group, class and contract version."""

    group: str
    base: type[Component]
    version: int = 1


KINDS: Mapping[str, Kind] = {
    "algorithm": Kind(group="areal_lit.algorithms", base=Algorithm),
    "strategy": Kind(group="areal_lit.strategies", base=Strategy),
    "inference": Kind(group="areal_lit.inference", base=InferenceBackend),
    "transport": Kind(group="areal_lit.transports", base=WeightTransport),
    "workflow": Kind(group="areal_lit.workflows", base=Workflow),
    "reward": Kind(group="areal_lit.rewards", base=Reward),
    "data": Kind(group="areal_lit.data", base=DataModule),
    "filter": Kind(group="areal_lit.filters", base=Filter),
    "optimizer": Kind(group="areal_lit.optimizers", base=Optimizer),
    "launcher": Kind(group="areal_lit.launchers", base=Launcher),
    "logger": Kind(group="areal_lit.loggers", base=RunLogger),
    "callback": Kind(group="areal_lit.callbacks", base=Callback),
}

__all__ = [
    "KINDS",
    "PREVIEWED",
    "Algorithm",
    "Bucket",
    "Callback",
    "Component",
    "DataModule",
    "Death",
    "Episode",
    "Filter",
    "GroupReward",
    "GroupSpec",
    "Head",
    "InferenceBackend",
    "Kind",
    "Launcher",
    "LogprobDistribution",
    "Optimizer",
    "Output",
    "Preview",
    "Process",
    "ProcessDied",
    "ProcessSpec",
    "Rank",
    "Receiver",
    "Reward",
    "RowSampler",
    "RunLogger",
    "Score",
    "Snapshot",
    "Source",
    "Strategy",
    "WeightTransport",
    "WorkerGroup",
    "Workflow",
]
