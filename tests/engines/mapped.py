"""Functions that engines map in the tests, and an engine whose workers die."""

import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pairwright.errors import ConfigError, RecordError


def doubled(number):
    return 2 * number


def process_of(number):
    return os.getpid()


def folder_of(number):
    return os.getcwd()


def refused(number):
    if number == 3:
        raise ConfigError(f"number {number} is not wanted")
    return number


def badly_pickled(number):
    raise RecordError("reward", number, "a score")


def broken(number):
    return 1 // (number - 2)


def always_dies(number):
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(task, *, function, folder):
    """The function, but the worker that has the third task of a folder is killed the first time."""
    count = len(list(Path(folder).iterdir()))
    Path(folder, f"{count}-{os.getpid()}-{os.urandom(4).hex()}").touch()
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(task)


@dataclass(frozen=True)
class Dying:
    """An engine in which a worker is killed in the middle of each map."""

    engine: object
    folder: Path

    @property
    def num_workers(self):
        return self.engine.num_workers

    def map(self, function, tasks):
        folder = self.folder / os.urandom(4).hex()
        folder.mkdir(parents=True)
        yield from self.engine.map(partial(dies_once, function=function, folder=folder), tasks)


def variable(name):
    return os.environ.get(name)
