"""Spellings of earlier versions, and the command that replaces each."""

import shlex

from pairwright.errors import ConfigError

# (command, word among its arguments) of an earlier version: the words that replace both
RENAMED = {
    ("pairs", "explain"): ["explain"],
    ("import", "--explain"): ["explain"],
    ("explain", "--run"): ["explain"],
    ("experience", "export"): ["export"],
    ("run", "--override"): ["run", "--set"],
}


def refuse_renamed(words: list[str]) -> None:
    """Raise ConfigError with the new command if the words of a command line are an old spelling."""
    for (command, old), new in RENAMED.items():
        # an old option may be at any position, an old command only after its group
        found = words[1:] if old.startswith("-") else words[1:2]
        if words[:1] == [command] and old in found:
            position = words.index(old, 1)
            rest = [*words[1:position], *new[1:], *words[position + 1 :]]
            raise ConfigError(f"`{command} {old}` is now: pairwright {shlex.join([new[0], *rest])}")
