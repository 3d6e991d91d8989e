"""`pairwright init`: a small project that runs at once, from one of the templates in examples/templates."""

import shutil
from pathlib import Path
from typing import Literal, get_args

from pairwright.errors import ConfigError
from pairwright.flow.example import example_folder
from pairwright.paths import write_atomic

Template = Literal["chat", "tools", "openai-sdk", "traces", "nat"]
TEMPLATES: tuple[str, ...] = get_args(Template)
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def create_project(folder: Path, template: str = "chat") -> list[str]:
    """Write a project into a folder that is new or empty; returns the names of its files.

    folder: where to put it.
    template: one of TEMPLATES.
    """
    if template not in TEMPLATES:
        raise ConfigError(f"--template {template}: expected one of {', '.join(TEMPLATES)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty: name a new folder, such as {folder}/{template}")
    source = example_folder(f"templates/{template}")
    with write_atomic(folder, error=ConfigError) as temporary:
        shutil.copytree(source, temporary, ignore=_LEFT_OUT)
        # the same for all templates
        shutil.copyfile(source.parent / "shared" / "make_model.py", temporary / "make_model.py")
        (temporary / ".gitignore").write_text("models/\nruns/\n__pycache__/\n", encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())


def read_commands(readme: str) -> list[str]:
    """The commands of a README: the lines of its first block, without comments.

    >>> read_commands("text\\n```\\npython a.py   # why\\npairwright run b.yaml\\n```\\n")
    ['python a.py', 'pairwright run b.yaml']
    """
    block = readme.split("```")[1]
    return [line.partition(" #")[0].rstrip() for line in block.strip().splitlines()]
