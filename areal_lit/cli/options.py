"""What ``fit``, ``evaluate`` and ``validate`` share: ``--config``, overrides, ``--print_config`` and help."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_lit.recipes import Recipe, RecipeError, resolve
from areal_lit.secrets import redact

COMMON = {
    "--config FILE|NAME": "a recipe: a file, or the name of a shipped one; may be repeated, later ones win",
    "--KEY VALUE": "set one key of the recipe (--policy.optimizer.lr 1e-4, --KEY=VALUE too)",
    "--KEY.help [NAME]": "list the components that KEY takes, or show the arguments of one",
    "--print_config": "print the recipe as resolved and stop",
    "--help": "this text and every key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A command line taken apart.

    Args:
        named: options of the command itself (``resume``).
        overrides: the rest, for the recipe.
    """

    configs: tuple[str, ...]
    named: Mapping[str, str]
    overrides: tuple[str, ...]
    is_print_config: bool


def read_options(command: str, arguments: Sequence[str], own: Mapping[str, str]) -> Options | None:
    """Take a command line apart; None after help was printed.

    Args:
        own: the command's own options, ``--name VALUE`` -> help.
    """
    configs: list[str] = []
    named: dict[str, str] = {}
    overrides: list[str] = []
    is_print_config = False
    own_names = {option.split()[0] for option in own}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, text = argument.partition("=")
        if argument in ("-h", "--help"):
            print_help(command, own)
            return None
        if name.startswith("--") and name.endswith(".help"):
            from areal_lit.cli.component_help import print_component_help

            print_component_help(name[2:-5], text or (rest[0] if rest and not rest[0].startswith("--") else ""))
            return None
        if argument == "--print_config":
            is_print_config = True
        elif name in {"--config", "-c", *own_names}:
            if not equals and (not rest or rest[0].startswith("--")):
                raise RecipeError(f"{name} needs a value: {name} VALUE")
            value = text if equals else rest.pop(0)
            if name in own_names:
                named[name[2:]] = value
            else:
                configs.append(value)
        else:
            overrides.append(argument)
            if not equals and rest and not rest[0].startswith("--"):
                overrides.append(rest.pop(0))
    return Options(configs=tuple(configs), named=named, overrides=tuple(overrides), is_print_config=is_print_config)


def print_help(command: str, own: Mapping[str, str]) -> None:
    """The command's options, then every key of a recipe as the Trainer's constructor has it."""
    print(f"usage: areal-lit {command} --config RECIPE [--KEY VALUE ...]\n\noptions:")
    for option, text in {**own, **COMMON}.items():
        print(f"  {option:<22} {text}")
    from areal_lit.cli.component_help import key_lines
    from areal_lit.trainer import Trainer

    print("\nkeys of a recipe:")
    print("\n".join(key_lines(Trainer)))


def read_recipe(options: Options) -> Recipe | None:
    """The recipe of a command line, its dropped arguments reported; None after it was printed."""
    if not options.configs and not options.overrides:
        raise RecipeError("no recipe is given; start with --config quickstart (`areal-lit recipes` lists the others)")
    recipe = resolve(options.configs, options.overrides)
    for note in recipe.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.is_print_config:
        print(as_yaml(redact(recipe.config)), end="")
        return None
    return recipe


def as_yaml(config: Mapping[str, Any]) -> str:
    """A recipe as YAML, in the order of the Trainer's arguments."""
    import yaml

    return str(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
