"""Tasks of reasoning-gym: over a hundred procedural puzzles with their own verifiers (extra ``reasoning-gym``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import DataModule, Source
from areal_lit.names import closest
from areal_lit.sizes import MAX_EXAMPLES, require_size
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit.validation import template_rules
from areal_lit_data.columns import Row, RowExamples

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

INSTALL = "the package reasoning-gym is not installed; run: pip install 'areal-lit[reasoning-gym]'"
ANSWER_HINT = "Give the final answer between <answer> and </answer>."


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a mixture.

    Args:
        weight: share of prompts, relative to the other tasks.
        level: difficulty, as the task's curriculum defines it from 0; None keeps the task's own defaults.
        config: parameters of the task (``{"min_terms": 3}``); they win over ``level``.
    """

    weight: float = 1.0
    level: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight must be > 0, got {self.weight}; leave the task out instead")
        if self.level is not None and self.level < 0:
            raise ValueError(f"level must be >= 0, got {self.level}")
        if wrong := {"seed", "size"} & self.config.keys():
            raise ValueError(f"{sorted(wrong)} of a task are set by the data module's own arguments, not in config")


class ReasoningGym(DataModule):
    """Procedural reasoning tasks, each a source of its own; use it with the reward `reasoning_gym`.

    Fields: ``dataset`` (the task's name), ``entry`` (what its verifier needs) and ``answer``.

    Args:
        tasks: task name -> its weight, level and config.
        size: examples per task and epoch.
        eval_size: held-out examples per task; 0 for none.
        seed: of the training examples; evaluation draws from other seeds.
        chat: send the question as a user message through the model's chat template.
        system: a system message in front; for chat prompts only.
        hint: a line after each question that says how to answer; empty for none.
    """

    def __init__(
        self,
        *,
        tasks: Mapping[str, Task],
        size: int = 10_000,
        eval_size: int = 64,
        seed: int = 0,
        chat: bool = False,
        system: str | None = None,
        hint: str = ANSWER_HINT,
    ) -> None:
        if not tasks:
            raise ValueError("tasks must name at least one task, as in {leg_counting: {}}")
        require_size("size", size, least=1, most=MAX_EXAMPLES)
        require_size("eval_size", eval_size, least=0, most=MAX_EXAMPLES)
        if system is not None and not chat:
            raise ValueError("system needs a chat prompt; set chat: true")
        self.tasks = tasks
        self.size = size
        self.eval_size = eval_size
        self.seed = seed
        self.chat = chat
        self.system = system
        self.hint = hint
        self._train: dict[str, Source] = {}
        self._evaluation: dict[str, Source] = {}

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if importlib.util.find_spec("reasoning_gym") is None:
            yield INSTALL
        if self.chat:
            yield from template_rules(trainer)

    def setup(self, codec: TextCodec) -> None:
        for name, task in self.tasks.items():
            self._train[name] = Source(examples=self._entries(name, task, self.size, self.seed), weight=task.weight)
            if self.eval_size:
                held_out = self._entries(name, task, self.eval_size, self.seed + self.size)
                self._evaluation[name] = Source(examples=held_out, weight=task.weight)

    def train(self) -> Mapping[str, Source]:
        return self._train

    def evaluation_names(self) -> Sequence[str]:
        return list(self.tasks) if self.eval_size else []

    def evaluation(self) -> Mapping[str, Source]:
        return self._evaluation

    def _entries(self, name: str, task: Task, size: int, seed: int) -> RowExamples[Row]:
        """The task's entries by index, each of which it draws from its seed and the index."""
        return RowExamples(create_task(name, task, size, seed), partial(self._example, name))

    def _example(self, name: str, entry: Row) -> Example:
        fields = {"dataset": name, "entry": entry, "answer": entry["answer"]}
        return Example(prompt=self._prompt(entry["question"]), fields=fields)

    def _prompt(self, question: str) -> str | tuple[Mapping[str, Any], ...]:
        text = f"{question.rstrip()}\n\n{self.hint}" if self.hint else question
        if not self.chat:
            return f"{text}\n"
        system = () if self.system is None else ({"role": "system", "content": self.system},)
        return (*system, {"role": "user", "content": text})


def create_task(name: str, task: Task, size: int, seed: int) -> Any:
    """A reasoning-gym dataset. Raises ValueError for an unknown task, parameter or level."""
    try:
        from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum, create_dataset
    except ImportError as error:
        raise ImportError(INSTALL) from error
    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no task {name!r}; {closest(name, DATASETS)}")
    parameters: dict[str, Any] = {"size": size, "seed": seed}
    if task.level is not None:
        if name not in CURRICULA:
            raise ValueError(
                f"task {name!r} has no curriculum, so no level {task.level}; give its parameters in config"
            )
        curriculum = create_curriculum(name)
        curriculum.set_global_level(task.level)
        parameters = dict(vars(curriculum.generate_configuration(parameters)))
    try:
        return create_dataset(name, **{**parameters, **task.config})
    except (TypeError, AssertionError, ValueError) as error:
        known = ", ".join(sorted(DATASETS[name][1].__dataclass_fields__.keys() - {"size", "seed"}))
        raise ValueError(f"task {name!r}: {error}; its parameters are {known}") from error
