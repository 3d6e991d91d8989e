"""`pairwright doctor [CONFIG]`."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.arguments import AsJson
from pairwright.cli.output import print_result, say
from pairwright.cli.overrides import Overrides, load_settings


def doctor(
    file: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="A YAML file.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="A pairs table to train on.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to train.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the run will go.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cuda, mps or cpu: only compare training and generation on this device with the CPU."),
    ] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that a run needs before it starts; exit code 2, with what to do, if a check fails."""
    if device is not None:
        _check_device(device, as_json=as_json)
        return
    from pairwright.config import base_folder
    from pairwright.jobs.doctor.diagnosis import diagnose
    from pairwright.jobs.doctor.findings import Patient, Verdict
    from pairwright.paths import ModelFolderError, find_model, is_hub_id

    config = load_settings(file, override)
    folder = Path("runs") / config.name
    # without --pairs, the existing pairs of the run
    table = pairs or (folder / "pairs" if (folder / "pairs").exists() else None)
    model = model or config.trained_model
    if model is not None and is_hub_id(model):
        with suppress(ModelFolderError):  # not in the cache: the diagnosis says so
            model = str(find_model(model, download=False))
    patient = Patient(
        config=config,
        pairs=table,
        model=model,
        output=output or folder,
        base=None if file is None else base_folder(config, file),
    )
    findings = diagnose(patient)
    keys = ("name", "verdict", "message", "way_out")
    values = [{key: getattr(item, key) for key in keys} for item in findings]
    rows = [
        (item.name, item.verdict, item.message + (f" → {item.way_out}" if item.way_out else "")) for item in findings
    ]
    print_result(values, str(file or "doctor"), ("what", "verdict", "found"), rows, as_json=as_json)
    failures = [item for item in findings if item.verdict is Verdict.FAILED]
    if failures:
        names = ", ".join(dict.fromkeys(item.name for item in failures))
        say(f"{len(failures)} of {len(findings)} checks failed: {names}")
        raise typer.Exit(2)
    num_unknown = sum(item.verdict is Verdict.UNKNOWN for item in findings)
    num_warnings = sum(item.verdict is Verdict.WARNING for item in findings)
    say(
        f"{len(findings)} checks, nothing wrong"
        + (f", {num_warnings} warning{'s' if num_warnings > 1 else ''}" if num_warnings else "")
        + (f", {num_unknown} unknown" if num_unknown else "")
    )


def _check_device(name: str, *, as_json: bool) -> None:
    """Print a table to paste into an issue."""
    from pairwright.jobs.doctor.device_check import check_device, describe_machine

    machine = describe_machine(name)
    rows = check_device(name)
    failed = [row.name for row in rows if not row.passed]
    value = {"machine": machine, "checks": [{"check": r.name, "ok": r.passed, "found": r.found} for r in rows]}
    cells = [("machine", "-", machine), *((r.name, "ok" if r.passed else "failed", r.found) for r in rows)]
    print_result(value, f"doctor --device {name}", ("check", "verdict", "found"), cells, as_json=as_json)
    if failed:
        say(f"{len(failed)} of {len(rows)} checks failed: {'; '.join(failed)}. Please paste the table into an issue.")
        raise typer.Exit(2)
    say(f"{len(rows)} checks, {name} computes what the CPU computes")
