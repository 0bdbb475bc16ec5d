"""Every cross-field rule of a run, checked before any process starts; and what would be started where."""

from areal_lit.validation.description import describe
from areal_lit.validation.lengths import sequence_limit
from areal_lit.validation.models import template_rules, tokenizer_notes
from areal_lit.validation.place import end_rules, name_rules, nothing_left, place_rules, start_rules
from areal_lit.validation.roles import ROLE_OF_NEED
from areal_lit.validation.rollouts import evaluation_rules, unscored_sources
from areal_lit.validation.rules import BrokenRules, broken_rules
from areal_lit.validation.walk import components, data_modules, engine_specs, has_rewards, roles

__all__ = [
    "ROLE_OF_NEED", "BrokenRules", "broken_rules", "components", "data_modules", "describe", "end_rules",
    "engine_specs", "evaluation_rules", "has_rewards", "name_rules", "nothing_left", "place_rules", "roles",
    "sequence_limit", "start_rules", "template_rules", "tokenizer_notes", "unscored_sources",
]  # fmt: skip
