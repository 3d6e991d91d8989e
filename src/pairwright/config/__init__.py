"""Configuration: one model tree, one file a section, filled from YAML, the environment and the command line."""

from pairwright.config.loading import config_schema, load_config, merged_tree, shown_config
from pairwright.config.section import Section
from pairwright.config.sources import SourcesConfig
from pairwright.config.tree import Config

__all__ = ["Config", "Section", "SourcesConfig", "config_schema", "load_config", "merged_tree", "shown_config"]
