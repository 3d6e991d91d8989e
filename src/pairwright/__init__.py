"""pairwright turns what an agent did into a better agent: records, the experience table, and what builds on them.

The names below are importable from here. They are loaded when first used, so that `import pairwright` and
`pairwright --help` stay fast and load no more than they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairwright.canonical import prompt_hash
    from pairwright.config import Config, load_config
    from pairwright.errors import (
        CodecError,
        ConfigError,
        PairwrightError,
        RecordError,
        SourceError,
        TableError,
    )
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
    from pairwright.records import EID, CustomField, Experience, Kind, Pair, Side, SideOf, Source
    from pairwright.sources.trinity_bytes import loads_trinity
    from pairwright.store.arrow import from_arrow, from_dataset, to_arrow, to_dataset
    from pairwright.store.codec import dumps, dumps_many, loads, loads_many
    from pairwright.store.table import Table

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
    "records": ["EID", "CustomField", "Experience", "Kind", "Pair", "Side", "SideOf", "Source"],
    "sources.trinity_bytes": ["loads_trinity"],
    "store.arrow": ["from_arrow", "from_dataset", "to_arrow", "to_dataset"],
    "store.codec": ["dumps", "dumps_many", "loads", "loads_many"],
    "store.table": ["Table"],
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "EID", "CodecError", "Config", "ConfigError", "CustomField", "ErrorSite", "Experience", "Kind", "Message", "Pair",
    "PairwrightError", "RecordError", "Side", "SideOf", "Source", "SourceError", "Table", "TableError", "ToolCall",
    "dumps", "dumps_many", "from_arrow", "from_dataset", "gather_action_masks", "gather_attention_masks",
    "gather_custom_fields", "gather_multi_modal_inputs", "gather_response_attr", "gather_token_ids", "group_by",
    "load_config", "loads", "loads_many", "loads_trinity", "prompt_hash", "split_preference", "split_preferences",
    "to_arrow", "to_dataset",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairwright' has no attribute {name!r}")
    return getattr(import_module(f"pairwright.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
