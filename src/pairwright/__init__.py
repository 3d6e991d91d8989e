"""pairwright turns what an agent did into a better agent: traces, preference pairs, tokens, training, proof.

    import pairwright as pw

    table = pw.import_traces("traces/*.jsonl", "runs/first/experience")
    pairs = table.pairs(strategy="best-worst", min_gap=0.1)
    data = pairs.encode("models/qwen")
    result = pw.train(data, model="models/qwen", output="runs/first/train")
    proof = pw.evaluate("models/qwen", result, workflow, tasks)

The names are loaded when first used, so that `import pairwright` and `pairwright --help` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairwright import losses as losses
    from pairwright import trl as trl
    from pairwright.collection.collecting import collect
    from pairwright.config import Config, load_config
    from pairwright.errors import (
        CodecError,
        ConfigError,
        PairwrightError,
        RecordError,
        SourceError,
        TableError,
    )
    from pairwright.evaluation.evaluating import evaluate
    from pairwright.export import ExportSummary, HubSummary, export_pairs, pull, push
    from pairwright.pairs.container import Pairs, make_pairs
    from pairwright.records.experience import EID, CustomField, Experience, Kind, Pair, Side, SideOf, Source
    from pairwright.records.grouping import group_by, split_preference
    from pairwright.records.messages import ErrorSite, Message, ToolCall, prompt_hash
    from pairwright.scores.score_tables import ScoreSummary, score
    from pairwright.sources.rollouts.trinity import loads_trinity
    from pairwright.sources.shapes.chat_messages import message_from_chat
    from pairwright.store.arrow import from_arrow, from_dataset, to_arrow, to_dataset
    from pairwright.store.codec import dumps, dumps_many, loads, loads_many
    from pairwright.store.importing import import_traces
    from pairwright.store.table import Table
    from pairwright.tokens.stage.stage import Encoded, encode
    from pairwright.training.training import train

__version__ = "0.2.0"

_HOMES = {
    "collection.collecting": ["collect"],
    "config": ["Config", "load_config"],
    "errors": ["CodecError", "ConfigError", "PairwrightError", "RecordError", "SourceError", "TableError"],
    "evaluation.evaluating": ["evaluate"],
    "records.grouping": ["group_by", "split_preference"],
    "records.messages": ["ErrorSite", "Message", "ToolCall", "prompt_hash"],
    "export": ["ExportSummary", "HubSummary", "export_pairs", "pull", "push"],
    "pairs.container": ["Pairs", "make_pairs"],
    "records.experience": ["EID", "CustomField", "Experience", "Kind", "Pair", "Side", "SideOf", "Source"],
    "scores.score_tables": ["ScoreSummary", "score"],
    "sources.shapes.chat_messages": ["message_from_chat"],
    "sources.rollouts.trinity": ["loads_trinity"],
    "store.arrow": ["from_arrow", "from_dataset", "to_arrow", "to_dataset"],
    "store.codec": ["dumps", "dumps_many", "loads", "loads_many"],
    "store.importing": ["import_traces"],
    "store.table": ["Table"],
    "tokens.stage.stage": ["Encoded", "encode"],
    "training.training": ["train"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = ("losses", "trl")  # used as they are: losses.dpo(...), trl.DPOTrainer(...)

__all__ = [
    "EID",
    "CodecError",
    "Config",
    "ConfigError",
    "CustomField",
    "Encoded",
    "ErrorSite",
    "Experience",
    "ExportSummary",
    "HubSummary",
    "Kind",
    "Message",
    "Pair",
    "Pairs",
    "PairwrightError",
    "RecordError",
    "ScoreSummary",
    "Side",
    "SideOf",
    "Source",
    "SourceError",
    "Table",
    "TableError",
    "ToolCall",
    "collect",
    "dumps",
    "dumps_many",
    "encode",
    "evaluate",
    "export_pairs",
    "from_arrow",
    "from_dataset",
    "group_by",
    "import_traces",
    "load_config",
    "loads",
    "loads_many",
    "loads_trinity",
    "losses",
    "make_pairs",
    "message_from_chat",
    "prompt_hash",
    "pull",
    "push",
    "score",
    "split_preference",
    "to_arrow",
    "to_dataset",
    "train",
    "trl",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"pairwright.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairwright' has no attribute {name!r}")
    return getattr(import_module(f"pairwright.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
