"""YAML files for other tools to read: plain values, keys in our order."""

from pathlib import Path

from ruamel.yaml import YAML

from pairwright.messages import Json
from pairwright.pairs.exporters.stream import written


def write_yaml(path: Path, value: Json, *, heading: str) -> None:
    """Write a file that appears whole, with a comment on top."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with written(path) as hidden, open(hidden, "w", encoding="utf-8") as file:
        file.write("".join(f"# {line}\n" for line in heading.splitlines()))
        yaml.dump(value, file)
