"""The card of a model made by a job: README.md with metadata for hubs."""

from pathlib import Path

from sqlalchemy.engine import RowMapping

from pairwright.paths import write_bytes


def write_card(row: RowMapping, folder: Path) -> None:
    """Write README.md to the folder of a model: base model, dataset, hyperparameters. Replaces PEFT's template."""
    document = row["document"]
    knobs, snapshot = document["hyperparameters"], document["config_snapshot"]
    is_adapter = (folder / "adapter_config.json").is_file()
    values = {name: value for name, value in knobs.items() if not isinstance(value, dict)}
    lines = [
        "---",
        f"base_model: {snapshot['base_model']}",
        f"library_name: {'peft' if is_adapter else 'transformers'}",
        "tags:",
        "- pairwright",
        f"- {knobs['training_type']}",
        "---",
        f"# {document['output_model']}",
        "",
        f"{snapshot['base_model']}, trained by pairwright ({knobs['training_type']}, {knobs['finetuning_type']}) "
        f"in job `{document['id']}` on the dataset `{document['dataset']['namespace']}/{document['dataset']['name']}` "
        f"(`{document['dataset']['files_url']}`), sequences of at most {snapshot['max_seq_length']} tokens.",
        "",
        "| hyperparameter | value |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in sorted(values.items())),
    ]
    write_bytes(folder / "README.md", ("\n".join(lines) + "\n").encode())
