"""Every cross-field rule of a run, and those of its components."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from areal_lit.contracts import KINDS
from areal_lit.plugins import kind_of
from areal_lit.validation.checkpoints import checkpoint_rules
from areal_lit.validation.examples import example_rules
from areal_lit.validation.kinds import kind_rules
from areal_lit.validation.models import model_rules, same_token_rules
from areal_lit.validation.numbers import number_rules
from areal_lit.validation.roles import launch_rules, refresh_rules, role_rules
from areal_lit.validation.rollouts import offline_rules, online_rules
from areal_lit.validation.run import run_rules
from areal_lit.validation.teachers import teacher_rules
from areal_lit.validation.twins import twin_rules
from areal_lit.validation.walk import components

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class BrokenRules(ValueError):
    """A run cannot take place as it is asked for.

    Args:
        rules: a sentence per broken one.
    """

    def __init__(self, rules: Sequence[str]) -> None:
        super().__init__("the recipe breaks these rules:\n" + "\n".join(f"- {rule}" for rule in rules))
        self.rules = rules


def broken_rules(trainer: Trainer, *, saves: bool = True) -> list[str]:
    """A sentence per broken rule: value, rule, way out. Starts, loads and writes nothing.

    Args:
        saves: checkpoints are to be written; an evaluation writes none.
    """
    misfits = kind_rules(trainer)
    if misfits:  # the other rules ask their objects, and these would not know the question
        return misfits
    broken = [
        *run_rules(trainer),
        *number_rules(trainer),
        *(checkpoint_rules(trainer) if saves else ()),
        *model_rules(trainer),
        *same_token_rules(trainer),
        *role_rules(trainer),
        *teacher_rules(trainer),
        *refresh_rules(trainer),
        *launch_rules(trainer),
        *twin_rules(trainer),
    ]
    broken += offline_rules(trainer) if trainer.algorithm.offline else online_rules(trainer)
    broken += [*example_rules(trainer), *_component_rules(trainer)]
    return list(dict.fromkeys(broken))


def _component_rules(trainer: Trainer) -> Iterator[str]:
    for path, component in components(trainer).items():
        kind = kind_of(type(component))
        if component.contract_version > KINDS[kind].version:
            yield (
                f"{path}: {type(component).__name__} implements version {component.contract_version} of the {kind} "
                f"contract, this areal-lit knows {KINDS[kind].version}; upgrade areal-lit or take an older release"
            )
            continue
        yield from (f"{path}: {rule}" for rule in component.rules(trainer))
