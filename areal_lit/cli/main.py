"""The ``areal-lit`` command. Each subcommand is a module, imported when it is called."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module, metadata

from areal_lit.cli.working_directory import deletion
from areal_lit.files import WriteError
from areal_lit.secrets import redact_terminal

COMMANDS = {
    "fit": "train",
    "evaluate": "run a recipe's evaluation sets, on a checkpoint or on the model it starts from",
    "validate": "check a recipe and show what it would start, starting nothing",
    "doctor": "look for what stands in the way of a run on this machine, and say what to do about it",
    "schema": "print the JSON Schema of recipes, for editors",
    "plugins": "list what is installed, look for broken plugins, start a plugin of your own",
    "recipes": "list, show and copy the recipes that ship with areal-lit",
    "samples": "browse what a run's model wrote, with rewards and versions",
    "compare": "show what runs differ in, their metrics side by side, and curves",
}

FINISHED, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns 0 when it finished, 1 when it failed, 2 for wrong use, 130 when it was interrupted."""
    _fill_descriptors()
    redact_terminal()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    try:
        try:
            return _call(name, arguments[1:])
        finally:  # now, as what goes wrong while the interpreter ends has no message
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "interrupted", file=sys.stderr)
        for note in getattr(interrupt, "__notes__", ()):
            print(f"({note})", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        if not _is_unread():
            raise
        _give_up_output()
        return FINISHED
    except WriteError as error:
        _give_up_output()
        return _refuse(name, str(error), code=FAILED)
    except (ValueError, OSError) as error:
        from areal_lit.plugins import PluginError
        from areal_lit.recipes import RecipeError
        from areal_lit.run_records import RecordsError

        if not isinstance(error, (RecipeError, PluginError, RecordsError)):
            raise
        return _refuse(name, str(error))


def _call(name: str, arguments: Sequence[str]) -> int:
    if name in ("-h", "--help"):
        print(_help())
        return FINISHED
    if name == "--version":
        print(f"areal-lit {metadata.version('areal-lit')}")
        return FINISHED
    if problem := deletion():  # many a library asks where it is as it is imported
        return _refuse("", problem)
    if name not in COMMANDS:
        from areal_lit.names import closest

        return _refuse("", f"there is no command {name!r}; {closest(name, COMMANDS)}")
    code: int = import_module(f"areal_lit.cli.{name}").run(arguments)
    return code


def _fill_descriptors() -> None:
    """Open what is closed of standard input, output and error: what a run opens would get its number, and be written to
    as such by every process of the run."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _is_unread() -> bool:
    """Whether the reader of standard output has gone, and not that of some other pipe."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _give_up_output() -> None:
    """Let what is not written yet go nowhere; the interpreter would try again as it ends, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _help() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: areal-lit COMMAND [OPTIONS]",
            "",
            "Asynchronous reinforcement learning of language models as a small loop and plugins.",
            "",
            "commands:",
            *lines,
            "",
            "Try `areal-lit fit --config quickstart`; `areal-lit COMMAND --help` says more.",
        ]
    )


def _refuse(command: str, message: str, *, code: int = WRONG_USE) -> int:
    print(f"{' '.join(filter(None, ('areal-lit', command)))}: error: {message}", file=sys.stderr)
    return code
