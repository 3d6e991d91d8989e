"""pairwright turns what an agent did into a better agent: traces, preference pairs, tokens, training, proof.

    import pairwright as pw

    table = pw.import_traces("traces/*.jsonl", "runs/first/experience")
    pairs = table.pairs(strategy="best-worst", min_gap=0.1)
    data = pairs.encode("models/qwen")
    result = pw.train(data, model="models/qwen", output="runs/first/train")
    proof = pw.evaluate("models/qwen", result, workflow, tasks)

The names are loaded when first used, so that `import pairwright` and `pairwright --help` stay fast.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairwright import losses as losses
    from pairwright.canonical import prompt_hash
    from pairwright.collect.collecting import collect
    from pairwright.config import Config, load_config
    from pairwright.errors import (
        CodecError,
        ConfigError,
        PairwrightError,
        RecordError,
        SourceError,
        TableError,
    )
    from pairwright.evaluate.evaluating import evaluate
    from pairwright.gather import (
        gather_action_masks,
        gather_attention_masks,
        gather_custom_fields,
        gather_multi_modal_inputs,
        gather_response_attr,
        gather_token_ids,
    )
    from pairwright.grouping import group_by, split_preference, split_preferences
    from pairwright.messages import ErrorSite, Message, ToolCall
    from pairwright.pairs.container import Pairs, make_pairs
    from pairwright.records import EID, CustomField, Experience, Kind, Pair, Side, SideOf, Source
    from pairwright.sources.chat import message_from_chat
    from pairwright.sources.trinity_bytes import loads_trinity
    from pairwright.store.arrow import from_arrow, from_dataset, to_arrow, to_dataset
    from pairwright.store.codec import dumps, dumps_many, loads, loads_many
    from pairwright.store.import_traces import import_traces
    from pairwright.store.table import Table
    from pairwright.tokens.encoded import Encoded, encode
    from pairwright.train.training import train

__version__ = "0.1.0"

_HOMES = {
    "canonical": ["prompt_hash"],
    "config": ["Config", "load_config"],
    "errors": ["CodecError", "ConfigError", "PairwrightError", "RecordError", "SourceError", "TableError"],
    "gather": [
        "gather_action_masks", "gather_attention_masks", "gather_custom_fields", "gather_multi_modal_inputs",
        "gather_response_attr", "gather_token_ids",
    ],
    "grouping": ["group_by", "split_preference", "split_preferences"],
    "messages": ["ErrorSite", "Message", "ToolCall"],
    "pairs.container": ["Pairs", "make_pairs"],
    "records": ["EID", "CustomField", "Experience", "Kind", "Pair", "Side", "SideOf", "Source"],
    "sources.chat": ["message_from_chat"],
    "sources.trinity_bytes": ["loads_trinity"],
    "store.arrow": ["from_arrow", "from_dataset", "to_arrow", "to_dataset"],
    "store.codec": ["dumps", "dumps_many", "loads", "loads_many"],
    "store.import_traces": ["import_traces"],
    "store.table": ["Table"],
    "tokens.encoded": ["Encoded", "encode"],
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
# Packages of the flow that are used as they are: `losses.dpo(...)`; the others can be called, too: `train(...)`.
_PACKAGES = ("collect", "evaluate", "losses", "train")

__all__ = [
    "EID", "CodecError", "Config", "ConfigError", "CustomField", "Encoded", "ErrorSite", "Experience", "Kind",
    "Message", "Pair", "Pairs", "PairwrightError", "RecordError", "Side", "SideOf", "Source", "SourceError", "Table",
    "TableError", "ToolCall", "collect", "dumps", "dumps_many", "encode", "evaluate", "from_arrow", "from_dataset",
    "gather_action_masks", "gather_attention_masks", "gather_custom_fields", "gather_multi_modal_inputs",
    "gather_response_attr", "gather_token_ids", "group_by", "import_traces", "load_config", "loads", "loads_many",
    "loads_trinity", "losses", "make_pairs", "message_from_chat", "prompt_hash", "split_preference",
    "split_preferences", "to_arrow", "to_dataset", "train",
]  # fmt: skip


def make_callable(module: str, function: Callable[..., Any]) -> None:
    """Let a package be called: `pairwright.train` is a package with submodules, and `pairwright.train(...)` trains."""
    kind = type("CallableModule", (ModuleType,), {"__call__": staticmethod(function)})
    sys.modules[module].__class__ = kind


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"pairwright.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairwright' has no attribute {name!r}")
    return getattr(import_module(f"pairwright.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
