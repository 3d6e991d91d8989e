"""YAML files for other tools to read: plain values, keys in our order."""

from pathlib import Path

from ruamel.yaml import YAML

from pairwright.errors import PairwrightError
from pairwright.messages import Json
from pairwright.places import write_atomic


def write_yaml(path: Path, value: Json, *, heading: str) -> None:
    """Write a file that appears whole, with a comment on top."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with write_atomic(path, error=PairwrightError) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("".join(f"# {line}\n" for line in heading.splitlines()))
        yaml.dump(value, file)
