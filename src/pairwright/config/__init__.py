"""Configuration: one model tree, one file a section, filled from YAML, the environment and the command line."""

from pairwright.config.backend import BackendConfig
from pairwright.config.collect import CollectConfig, ScorerConfig, TeachConfig
from pairwright.config.engine import EngineConfig
from pairwright.config.evaluate import EvaluateConfig
from pairwright.config.loading import config_schema, load_config, merged_tree, shown_config
from pairwright.config.loop import LoopConfig
from pairwright.config.pairs import PairsConfig
from pairwright.config.policy import PolicyConfig
from pairwright.config.section import Section
from pairwright.config.sources import SourcesConfig
from pairwright.config.tokens import TokensConfig
from pairwright.config.train import TrainConfig
from pairwright.config.tree import Config

__all__ = [
    "BackendConfig",
    "CollectConfig",
    "Config",
    "EngineConfig",
    "EvaluateConfig",
    "LoopConfig",
    "PairsConfig",
    "PolicyConfig",
    "ScorerConfig",
    "Section",
    "SourcesConfig",
    "TeachConfig",
    "TokensConfig",
    "TrainConfig",
    "config_schema",
    "load_config",
    "merged_tree",
    "shown_config",
]
