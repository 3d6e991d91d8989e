"""Run with a checkout of NeMo RL on the path and our configuration files as arguments: each is checked by NeMo RL's own
MasterConfig, and its data is read by NeMo RL's own loaders. Prints, as JSON, what each gives or the error.

Only its classes and loaders run here. What it imports beside them and is not installed (wandb, hydra, a scheduler of
GPUs ...) is replaced by empty modules; transformers too, of which it wants an older version.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import typing
from unittest.mock import MagicMock

import datasets
import typing_extensions
from ruamel.yaml import YAML

# It is written for Python 3.12, where pydantic takes both.
typing.TypedDict = typing_extensions.TypedDict
datasets.disable_progress_bars()


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, *names):
        self.names = set(names)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return MagicMock(__name__=spec.name, __path__=[], __version__="5.0.0")

    def exec_module(self, module):
        pass


def load_peer():
    absent = Absent("transformers")
    sys.meta_path.insert(0, absent)
    while True:
        try:
            from nemo_rl.algorithms.dpo import MasterConfig
            from nemo_rl.data.datasets.preference_datasets import load_preference_dataset

            # `datasets` looks at the classes of those that are loaded.
            for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] in absent.names]:
                del sys.modules[loaded]
            return MasterConfig, load_preference_dataset
        except ModuleNotFoundError as error:
            name = error.name.partition(".")[0]
            if name in absent.names or name == "nemo_rl":
                raise
            absent.names.add(name)
            for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "nemo_rl"]:
                del sys.modules[loaded]


def check(path, master_config, load_preference_dataset):
    with open(path, encoding="utf-8") as file:
        tree = YAML(typ="safe").load(file)
    try:
        config = master_config(**tree)
        # As setup_preference_data does: the default of all datasets first, then what the dataset says.
        rows = load_preference_dataset({**config.data["default"], **config.data["train"]}).dataset
        last = rows[0]["completions"][0]["completion"][-1]
        return {"rows": len(rows), "keys": sorted(rows[0]), "role": last["role"]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    os.environ["NO_VCS_VERSION"] = "1"
    peer = load_peer()
    print(json.dumps([check(path, *peer) for path in sys.argv[1:]]))
