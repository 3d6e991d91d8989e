"""Configuration: one model tree, one file per section, filled from YAML, the environment and the command line."""

from pairwright.config.backend_config import BackendConfig
from pairwright.config.collect_config import CollectConfig, ScorerConfig, TeachConfig
from pairwright.config.config_file import base_folder, config_schema, load_config, merge_tree, printable_config
from pairwright.config.config_tree import Config
from pairwright.config.model_config import PolicyConfig
from pairwright.config.pairs_config import PairsConfig
from pairwright.config.sections import EngineConfig, EvaluateConfig, LoopConfig, Section, SourcesConfig, TokensConfig
from pairwright.config.train_config import TrainConfig

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
    "base_folder",
    "config_schema",
    "load_config",
    "merge_tree",
    "printable_config",
]
