"""What a completed job leaves beside its weights: the card of its model, and a file of metrics for OpenAI's clients."""

import csv
import io
from pathlib import Path

from sqlalchemy.engine import Connection, RowMapping

from pairwright.paths import write_bytes
from pairwright.service.context import Context
from pairwright.service.rows import entities, job_progress
from pairwright.service.rows import job_rows as jobs

PURPOSE = "fine-tune-results"
FILE_NAME = "step_metrics.csv"
# OpenAI's columns come first, even without values; then all other curves.
_COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")


def add_result_file(context: Context, row: RowMapping, run_folder: Path) -> None:
    """Store the curves of a job of OpenAI's API as `step_metrics.csv`, one row per step. Repeating it adds nothing."""
    document = row["document"]
    if "openai" not in document:
        return
    content = format_metrics(run_folder)
    name = file_id(row["id"])
    with context.blobs.hold() as held:
        blob = context.blobs.add([content], len(content), held)
        file = {"filename": FILE_NAME, "bytes": blob.size, "purpose": PURPOSE, "sha256": blob.sha256}
        with context.database.writing() as connection:
            # The file exists already if the service was killed before the job reached its final state.
            if entities.find(connection, entities.FILE, row["namespace"], name) is None:
                file |= {"namespace": row["namespace"], "name": name}
                entities.insert(connection, entities.FILE, row["namespace"], name, file)
            jobs.set_document(connection, row["id"], openai={**document["openai"], "result_files": [name]})


def delete_result_file(connection: Connection, row: RowMapping) -> set[str]:
    """Delete the row of a job's result file; returns its blob, if there is one."""
    document = entities.find(connection, entities.FILE, row["namespace"], file_id(row["id"]))
    if document is None:
        return set()
    entities.delete(connection, entities.FILE, row["namespace"], document["name"])
    return {document["sha256"]}


def file_id(job_id: str) -> str:
    return f"file-{job_id.partition('-')[2]}"


def format_metrics(run_folder: Path) -> bytes:
    steps: dict[int, dict[str, float]] = {}
    for name, points in job_progress.read_metrics(run_folder, max_points=2**31).items():
        column = f"valid_{name.removeprefix('val_')}" if name.startswith("val_") else name
        for point in points:
            steps.setdefault(point["step"], {"step": point["step"]})[column] = point["value"]
    others = sorted({name for values in steps.values() for name in values} - set(_COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_COLUMNS, *others], lineterminator="\n")
    writer.writeheader()
    writer.writerows(steps[step] for step in sorted(steps))
    return text.getvalue().encode()


def write_card(row: RowMapping, folder: Path) -> None:
    """Write README.md to the folder of a model, with metadata for hubs. Replaces PEFT's template."""
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
