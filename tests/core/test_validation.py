"""Rules of a run: one broken setting each, and the sentence that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from areal_lit import Evaluation, Role, Rollout, Sampling, Trainer, WeightSync, recipes
from areal_lit.checkpointing import Best, Checkpoint
from areal_lit.contracts import DataModule, Reward, Source
from areal_lit.rollout import Warmup
from areal_lit.testing import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example, ModelSpec
from areal_lit.validation import BrokenRules, broken_rules, components, describe
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.sft import SFT
from areal_lit_callbacks.progress import Progress
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_data.curriculum import Curriculum
from areal_lit_data.jsonl import Jsonl
from areal_lit_data.mixture import Mixture, MixtureSource
from areal_lit_filters.equal_rewards import EqualRewards
from areal_lit_filters.length import Length
from areal_lit_filters.success_rate import SuccessRate
from areal_lit_inference.transformers import Transformers
from areal_lit_launchers.inline import Inline
from areal_lit_launchers.local import Local
from areal_lit_loggers.csv import Csv
from areal_lit_loggers.plots import Plots
from areal_lit_loggers.samples import Samples
from areal_lit_optimizers.adamw import AdamW
from areal_lit_rewards.composite import Composite
from areal_lit_rewards.exact_match import ExactMatch
from areal_lit_rewards.function import Function
from areal_lit_single.strategy import Single
from areal_lit_transports.file import File
from areal_lit_transports.memory import Memory
from areal_lit_workflows.single_turn import SingleTurn

MODEL = ModelSpec(path="package:areal_lit_recipes/quickstart_model")


def role(**changes: Any) -> Role:
    given: dict[str, Any] = {"model": MODEL, "strategy": Single(), "optimizer": AdamW(lr=1e-3), "num_threads": 1}
    return Role(**{**given, **changes})


def frozen(**changes: Any) -> Role:
    return role(optimizer=None, **changes)


def rollout(**changes: Any) -> Rollout:
    return Rollout(**{"groups_per_step": 4, "samples_per_group": 2, **changes})


def trainer(**changes: Any) -> Trainer:
    """A valid run over processes, changed."""
    given: dict[str, Any] = {
        "algorithm": GRPO(), "policy": role(), "data": Arithmetic(), "launcher": Local(), "max_steps": 2,
        "inference": Transformers(), "transport": File(), "workflow": SingleTurn(), "reward": ExactMatch(),
        "rollout": rollout(),
    }  # fmt: skip
    return Trainer(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"reward": ExactMatch}, "reward must be an object, got the class ExactMatch: construct it, as in ExactMatch("),
        ({"data": {}}, "data must be of a class derived from DataModule, got {} (dict)"),
        ({"policy": Single()}, "policy must be of a class derived from Role, got <areal_lit_single"),
        ({"policy": role(strategy=AdamW(lr=1e-3))}, "policy.strategy must be of a class derived from Strategy, got <"),
        ({"loggers": [Csv(), "plots"]}, "loggers.1 must be of a class derived from RunLogger, got 'plots' (str)"),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_is_named(changes: Mapping[str, Any], rule: str) -> None:
    (told,) = broken_rules(trainer(**changes))
    assert told.startswith(rule)


def mixture(**rewards: Reward | None) -> Mixture:
    return Mixture(sources={name: MixtureSource(data=Arithmetic(), reward=r) for name, r in rewards.items()})


@pytest.fixture(autouse=True)
def _one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ``x`` of one row, in a directory where no run is."""
    monkeypatch.chdir(tmp_path)
    Path("x").write_text('{"prompt": "1+1=", "answer": "2", "completion": "2"}\n')


class Later(ExactMatch):
    """Written for a contract that does not exist yet."""

    contract_version: ClassVar[int] = 99


class LaterCriticism(ExactMatch):
    """Has a rule of its own."""

    def rules(self, trainer: Trainer) -> Iterable[str]:
        return ["never right"]


def test_an_evaluation_has_no_rules_of_what_is_saved() -> None:
    assert broken_rules(trainer(**best(Evaluation(), set="arithmetic")), saves=False) == []


def test_a_valid_run_breaks_no_rule() -> None:
    assert broken_rules(trainer()) == []
    assert broken_rules(trainer(launcher=Inline(), transport=Memory(), policy=role(num_threads=0))) == []


def best(evaluation: Evaluation, **named: Any) -> dict[str, Any]:
    return {"checkpoint": Checkpoint(best=Best(**named)), "evaluation": evaluation}


BROKEN: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "best of no evaluation": (
        lambda: best(Evaluation(), set="arithmetic"),
        "checkpoint.best needs evaluations, and there are none; set evaluation.every_steps",
    ),
    "best of no set": (
        lambda: best(Evaluation(every_steps=1, data={"hard": Arithmetic()}), set="arithmetics"),
        "checkpoint.best.set 'arithmetics' is no evaluation set; there are: arithmetic, hard",
    ),
    "best of no metric": (
        lambda: best(Evaluation(at_end=True, samples=4), set="arithmetic", metric="pass@2"),
        "metric 'pass@2' is no metric of a set; there are: reward, reward_ci95, unscored, length, pass@1, pass@4",
    ),
    "steps": (lambda: {"max_steps": 0}, "max_steps must be >= 1 or null for open-ended, got 0"),
    "endless": (lambda: {"max_steps": None}, "the run would never end"),
    "name": (lambda: {"name": "a/b"}, "must not hold '/' or '\\' or start with '.', got 'a/b'"),
    "long name": (lambda: {"name": "n" * 129}, "name must be at most 128 printable characters, got 129: 'n"),
    "name with a line break": (lambda: {"name": "a\nb"}, "name must be at most 128 printable characters, got 3: 'a"),
    "no number": (
        lambda: {"evaluation": Evaluation(success_reward=float("nan"))},
        "evaluation.success_reward is nan, which is not a number",
    ),
    "call timeout": (lambda: {"call_timeout_s": 0.0}, "call_timeout_s must be > 0, got 0.0"),
    "minibatches": (lambda: {"num_minibatches": 9}, "num_minibatches 9 is more than the 8 samples of a step"),
    "uneven minibatches": (
        lambda: {"num_minibatches": 3}, "num_minibatches 3 does not divide the 8 samples of a step (groups_per_step"
    ),
    "uneven minibatches of a warm-up": (
        lambda: {"num_minibatches": 4, "rollout": rollout(groups_warmup=Warmup(start=1, steps=3))},
        "num_minibatches 4 does not divide the 2 samples of a step of the warm-up; set start and multiple_of of "
        "rollout.groups_warmup to multiples of 2",
    ),
    "warm-up of no rollouts": (
        lambda: {
            "algorithm": SFT(), "inference": None, "transport": None,
            "rollout": rollout(length_warmup=Warmup(start=1, steps=3)),
        },
        "rollout.length_warmup is given, but SFT learns without rollouts; remove it",
    ),
    "no divisor but far away": (
        lambda: {"num_minibatches": 3, "rollout": rollout(groups_per_step=2**20)},
        "does not divide the 2097152 samples of a step (groups_per_step times samples_per_group); set it "
        "to 2",
    ),
    "name of too many bytes": (lambda: {"name": "é" * 121}, "name must be at most 240 bytes in UTF-8, got 242"),
    "no minibatch": (lambda: {"num_minibatches": 0}, "num_minibatches must be >= 1, got 0"),
    "inference": (lambda: {"inference": None}, "inference is missing: GRPO learns from rollouts"),
    "staleness": (lambda: {"sync": WeightSync(interval=3)}, "rollout.max_staleness 1 must be >= sync.interval - 1 = 2"),
    "deterministic": (lambda: {"deterministic": True}, "deterministic needs rollout.max_staleness 0, got 1"),
    "threads": (
        lambda: {"deterministic": True, "rollout": rollout(max_staleness=0), "policy": role(num_threads=0)},
        "deterministic needs a fixed number of threads, got policy.num_threads 0",
    ),
    "greedy": (lambda: {"rollout": rollout(sampling=Sampling(temperature=0))}, "rollout.sampling.temperature is 0"),
    "transport": (lambda: {"transport": Memory()}, "transport Memory stays within one process, but launcher Local"),
    "offline": (lambda: {"algorithm": SFT()}, "SFT learns from data alone and uses no inference or transport"),
    "reference": (lambda: {"algorithm": GRPO(kl_weight=0.1)}, "reference is missing: GRPO with kl_weight 0.1 needs"),
    "critic": (lambda: {"critic": role()}, "critic is given but GRPO does not use it"),
    "optimizer": (lambda: {"policy": frozen()}, "policy.optimizer is missing: GRPO trains that role"),
    "trained reference": (
        lambda: {"algorithm": GRPO(kl_weight=0.1), "reference": role()},
        "reference.optimizer is given but GRPO does not train that role",
    ),
    "colocation": (
        lambda: {"algorithm": GRPO(kl_weight=0.1), "reference": frozen(colocate_with="critic")},
        "reference.colocate_with must name another role with ranks of its own, got 'critic'",
    ),
    "ranks": (lambda: {"policy": role(num_ranks=2)}, "policy.num_ranks is 2, but strategy Single runs on one rank"),
    "reward": (lambda: {"reward": None}, "reward is missing: data leaves scoring Arithmetic to it"),
    "part": (
        lambda: {"reward": None, "data": mixture(own=ExactMatch(), bare=None, other=None)},
        "reward is missing: data leaves scoring bare, other to it",
    ),
    "evaluation set": (
        lambda: {
            "reward": None, "data": mixture(own=ExactMatch()), "evaluation": Evaluation(data={"extra": Arithmetic()})
        },
        "reward is missing: evaluation.data.extra leaves scoring Arithmetic to it",
    ),
    "length": (
        lambda: {"policy": role(strategy=Single(max_tokens_per_microbatch=256))},
        "rollout.sampling.max_new_tokens 256 and a prompt do not fit policy.strategy.max_tokens_per_microbatch 256",
    ),
    "length for the model": (
        lambda: {"rollout": rollout(sampling=Sampling(max_new_tokens=2000))},
        "rollout.sampling.max_new_tokens 2000 and a prompt do not fit policy.model's max_position_embeddings 1024",
    ),
    "length of a part": (
        lambda: {
            "data": Mixture(
                sources={"a": MixtureSource(data=Arithmetic(), sampling=Sampling(max_new_tokens=1024))}
            )
        },
        "data.sources.a.sampling.max_new_tokens 1024 and a prompt do not fit",
    ),
    "length with its prompt": (
        lambda: {"data": Jsonl(files=["x"], max_prompt_tokens=800)},
        "max_prompt_tokens 800 and rollout.sampling.max_new_tokens 256 together do not fit",
    ),
    "template": (
        lambda: {"data": Jsonl(files=["x"]), "template_kwargs": {"enable_thinking": False}},
        "data: template_kwargs {'enable_thinking': False} has no effect on prompts of plain text",
    ),
    "length for a reference": (
        lambda: {
            "algorithm": GRPO(kl_weight=0.1), "reference": frozen(strategy=Single(max_tokens_per_microbatch=100))
        },
        "max_new_tokens 256 and a prompt do not fit reference.strategy.max_tokens_per_microbatch 100",
    ),
    "version": (lambda: {"reward": Later()}, "reward: Later implements version 99 of the reward contract"),
    "loggers of one file": (
        lambda: {"loggers": [Csv(), Csv(file_name="other.csv"), Samples(file_name="other.csv")]},
        "loggers.1 and loggers.2 would each write 'other.csv' in the run's directory; keep one, or give each its own",
    ),
    "plots of one directory": (
        lambda: {"loggers": [Plots(), Csv(), Plots(every_s=60.0)]}, "loggers.0 and loggers.2 would each write 'plots'"
    ),
    "the same logger": (
        lambda: {"loggers": [Samples(), Csv(), Samples()]},
        "loggers.2 is loggers.0 again (Samples with the same arguments); remove one of them",
    ),
    "the same filter": (
        lambda: {"filters": [Length(max_tokens=9), Length(max_tokens=8), Length(max_tokens=9)]},
        "filters.2 is filters.0 again (Length with the same arguments); remove one of them",
    ),
    "the same callback": (lambda: {"callbacks": [Progress(), Progress()]}, "callbacks.1 is callbacks.0 again"),
    "own rule": (lambda: {"reward": Composite(parts={"a": LaterCriticism()})}, "reward.parts.a: never right"),
    "part's own rule": (lambda: {"data": mixture(a=LaterCriticism())}, "data.sources.a.reward: never right"),
    "script function": (
        lambda: {"reward": Function(function=lambda completion: 1.0)},
        "reward 'reward' (Function) cannot be sent to the reward pool's processes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_rule_is_named_once(name: str) -> None:
    changes, sentence = BROKEN[name]
    broken = broken_rules(trainer(**changes()))
    assert [rule for rule in broken if sentence in rule] == broken[:1], broken
    assert len(broken) == 1


def test_all_broken_rules_are_told_at_once() -> None:
    broken = broken_rules(trainer(max_steps=0, name="", reward=None))
    assert len(broken) == 3


class Imitation(GRPO):
    """Learns without rewards."""

    uses_rewards: Any = False


@pytest.mark.parametrize("evaluation", [{"at_start": True}, {"every_steps": 1}, {"at_end": True}])
def test_what_learns_without_rewards_needs_one_for_evaluations_alone(evaluation: Mapping[str, Any]) -> None:
    bare: dict[str, Any] = {"algorithm": Imitation(), "reward": None}
    assert broken_rules(trainer(**bare)) == []
    (rule,) = broken_rules(trainer(**bare, evaluation=Evaluation(**evaluation)))
    assert rule.startswith("reward is missing: Imitation learns without one, but an evaluation reports rewards, and ")
    assert broken_rules(trainer(**bare, data=Arithmetic(num_eval=0), evaluation=Evaluation(**evaluation))) == []
    with pytest.raises(BrokenRules, match="an evaluation reports rewards"):
        trainer(**bare).evaluate()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"filters": [EqualRewards()]}, "equal_rewards compares rewards, and nothing scores Arithmetic"),
        ({"filters": [SuccessRate()]}, "success_rate judges rewards, and nothing scores Arithmetic"),
        ({"data": Curriculum(data=Arithmetic())}, "curriculum learns from rewards, and nothing scores Arithmetic"),
    ],
)
def test_what_judges_rewards_needs_some(changes: Mapping[str, Any], told: str) -> None:
    (rule,) = broken_rules(trainer(algorithm=Imitation(), reward=None, **changes))
    assert told in rule
    assert broken_rules(trainer(algorithm=Imitation(), **changes)) == []


def test_only_rewards_that_there_are_are_described() -> None:
    assert "rewards: 2 processes" in describe(trainer())
    assert "rewards: 2 processes" in describe(trainer(algorithm=Imitation()))
    assert not any(line.startswith("rewards") for line in describe(trainer(algorithm=Imitation(), reward=None)))


def test_one_strategy_object_in_two_roles_is_refused() -> None:
    strategy = Single()
    algorithm = GRPO(kl_weight=0.1)
    run = trainer(algorithm=algorithm, policy=role(strategy=strategy), reference=frozen(strategy=strategy))
    (rule,) = broken_rules(run)
    assert "reference.strategy is the very object of policy.strategy" in rule
    assert broken_rules(trainer(algorithm=algorithm, reference=frozen())) == []


def test_a_script_function_is_right_in_this_process() -> None:
    reward = Composite(parts={"a": Function(function=lambda completion: 1.0)})
    assert broken_rules(trainer(reward=reward, launcher=Inline(), transport=Memory())) == []
    (rule,) = broken_rules(trainer(reward=reward))
    assert "inline launcher" in rule


def test_offline_lengths_are_checked_against_the_budget() -> None:
    offline = {"inference": None, "transport": None, "workflow": None, "reward": None}
    assert broken_rules(trainer(algorithm=SFT(max_length=16_384), **offline)) == []
    (rule,) = broken_rules(trainer(algorithm=SFT(max_length=16_385), **offline))
    assert "max_length 16385 does not fit policy.strategy.max_tokens_per_microbatch 16384" in rule


class Untouchable(Sequence[Example]):
    """Rows that cost something."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("validation read the data")


class Loaded(DataModule):
    """Holds rows and a reward that no argument gave it."""

    def __init__(self) -> None:
        self.source = Source(examples=Untouchable(), reward=ExactMatch())

    def setup(self, codec: TextCodec) -> None: ...

    def train(self) -> Mapping[str, Source]:
        return {"all": self.source}

    def unrewarded(self) -> Sequence[str]:
        return ()


def test_validation_walks_what_constructors_were_given_and_nothing_else() -> None:
    run = trainer(
        data=Mixture(sources={"loaded": MixtureSource(data=Loaded())}),
        evaluation=Evaluation(data={"sums": Arithmetic()}),
        reward=Composite(parts={"right": ExactMatch()}),
    )
    assert broken_rules(run) == []
    assert set(components(run)) == {
        "algorithm", "policy.strategy", "policy.optimizer", "data", "data.sources.loaded.data", "launcher", "inference",
        "transport", "workflow", "reward", "reward.parts.right", "evaluation.data.sums",
    }  # fmt: skip


def test_chat_prompts_need_a_template_whose_arguments_are_right_then(tmp_path: Path) -> None:
    chat: dict[str, Any] = {"data": Jsonl(files=["x"], chat=True), "template_kwargs": {"enable_thinking": False}}
    assert broken_rules(trainer(policy=role(model=tiny_spec(tmp_path)), **chat)) == []
    (rule,) = broken_rules(trainer(**chat))
    assert "the tokenizer of 'package:areal_lit_recipes/quickstart_model' has no chat template" in rule


def test_a_role_refuses_less_than_nothing() -> None:
    for name in ("num_ranks", "num_threads", "num_gpus"):
        with pytest.raises(ValueError, match=f"{name} must be >= "):
            role(**{name: -1})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_rates_and_temperatures_must_be_finite(value: float) -> None:
    with pytest.raises(ValueError, match="lr must be finite and >= 0"):
        AdamW(lr=value)
    with pytest.raises(ValueError, match="max_grad_norm must be finite and >= 0"):
        AdamW(lr=1e-3, max_grad_norm=value)
    with pytest.raises(ValueError, match=r"temperature must be 0 \(greedy\), or finite and >= 0\.01"):
        Sampling(temperature=value)


def test_a_temperature_that_logits_overflow_by_is_refused() -> None:
    with pytest.raises(ValueError, match=r"finite and >= 0\.01, got 1e-30"):
        Sampling(temperature=1e-30)


def test_describe_says_what_would_be_started_where() -> None:
    lines = recipes.load("quickstart_inline").describe()
    assert lines[0] == "controller: this process"
    assert [line.partition(":")[0] for line in lines] == ["controller", "policy", "engine-0", "rewards"]
    assert lines[1:3] == [
        "policy: Single of package:areal_lit_recipes/quickstart_model, in this process",
        "engine-0: in this process",
    ]


@pytest.mark.parametrize("path", ["./no/such", "/no/such", "~/no/such", "package:areal_lit_recipes/none"])
def test_a_local_model_must_exist(path: str) -> None:
    (rule,) = recipes.load("quickstart", overrides=[f"policy.model.path={path}"]).validate()
    assert rule.startswith(f"policy.model.path: model path {path!r}")


def test_a_model_on_the_hub_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    run = recipes.load("quickstart_inline", overrides=["policy.model.path=nobody/nothing"])
    assert run.validate() == []
    assert run.describe()[1] == "policy: Single of nobody/nothing (a hub model; not checked), in this process"
