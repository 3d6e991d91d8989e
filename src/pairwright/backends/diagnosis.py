"""What a run needs, looked at before it starts: each thing is fine, or wrong with the way out, or could not be told.

Nothing is changed and nothing is trained. A check that itself goes wrong is a finding too, never a crash.
"""

import math
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pairwright.backends.diagnosis_model import Size, memory_available, model_size, needs
from pairwright.backends.diagnosis_services import check_policy, check_service
from pairwright.backends.diagnosis_tokens import check_tokens
from pairwright.backends.findings import Finding, Patient, Verdict, fine, untold, wrong
from pairwright.errors import PairwrightError
from pairwright.sources.files import expand_paths

_PACKAGES = {
    "local": {"torch": "train", "transformers": "train"},
    "nemo-customizer": {"httpx": "customizer", "huggingface_hub": "customizer"},
}


def diagnose(patient: Patient) -> list[Finding]:
    """All findings, in the order of the flow."""
    found: list[Finding] = []
    for check in (
        check_sources, check_tasks, check_policy, check_pairs, check_model, check_tokens, check_memory, check_disk,
        check_packages, check_programs, check_service,
    ):  # fmt: skip
        try:
            found += check(patient)
        except (PairwrightError, OSError) as error:
            found.append(Finding(check.__name__.removeprefix("check_"), Verdict.FAILED, str(error)))
    return found


def check_sources(patient: Patient) -> Iterator[Finding]:
    for path in patient.config.sources.paths:
        try:
            num_files = len(expand_paths([path]))
        except PairwrightError as error:
            yield wrong("sources", str(error), "correct sources.paths")
            continue
        yield fine("sources", f"{path}: {num_files} files")


def check_tasks(patient: Patient) -> Iterator[Finding]:
    from pairwright.collect.loading import WORKFLOWS, load_function
    from pairwright.collect.tasks import load_tasks

    collect = patient.config.collect
    if collect.dataset is not None or collect.num_tasks is not None:
        try:
            yield fine("tasks", f"{len(load_tasks(collect)):,} tasks")
        except PairwrightError as error:
            yield wrong("tasks", str(error), "correct collect.dataset")
    if collect.workflow is not None:
        try:
            load_function(collect.workflow, group=WORKFLOWS, base=patient.base)
            yield fine("workflow", f"{collect.workflow} can be loaded")
        except PairwrightError as error:
            yield wrong("workflow", str(error), "correct collect.workflow")


def check_pairs(patient: Patient) -> Iterator[Finding]:
    from pairwright.pairs.stats import lint_pairs
    from pairwright.pairs.table import count_pairs

    if patient.pairs is None:
        return
    num_pairs = count_pairs(patient.pairs)
    if not num_pairs:
        yield wrong("pairs", f"{patient.pairs}: no pairs", f"pairwright pairs stats {patient.pairs}")
        return
    yield fine("pairs", f"{patient.pairs}: {num_pairs:,} pairs of the right form")
    findings = lint_pairs(patient.pairs)
    for finding in findings:
        yield wrong(f"pairs: {finding.name}", finding.message, f"pairwright pairs lint {patient.pairs}")
    yield from _check_fit(patient)


def _check_fit(patient: Patient) -> Iterator[Finding]:
    """Whether the pairs are what the backend can train on."""
    import tempfile

    from pairwright.backends.dataset import UNFAITHFUL, write_dataset

    backend = patient.config.backend
    targets = {"nemo-customizer": ("customizer", backend.nemo_customizer.validation),
               "nemo-rl": (f"nemo-rl-{backend.nemo_rl.dataset}", backend.nemo_rl.validation),
               "trl": ("trl", backend.trl.validation)}  # fmt: skip
    if patient.pairs is None or backend.name not in targets:
        return
    target, share = targets[backend.name]
    with tempfile.TemporaryDirectory(prefix="pairwright-doctor-") as folder:
        try:
            made = write_dataset(
                patient.pairs, Path(folder), target=target, names=("a.jsonl", "b.jsonl"), validation=share,
                seed=patient.config.seed, history=backend.nemo_customizer.use_full_message_history,
            )  # fmt: skip
        except PairwrightError as error:
            yield wrong("dataset", str(error), "docs/exports.md says what each trainer can hold")
            return
    odd = sum(made.refused.values()) + sum(made.noted.get(reason, 0) for reason in UNFAITHFUL)
    if odd:
        yield wrong(
            "dataset", f"as {target}: {made}", "docs/exports.md has the reasons; the local backend has no such limits"
        )
    else:
        yield fine("dataset", f"as {target}: {made}")


def check_model(patient: Patient) -> Iterator[Finding]:
    from pairwright.pairs.exporters.stream import begins_with_text
    from pairwright.tokens import ChatTokenizer, TokensError, check_template

    if patient.model is None:
        return
    folder = Path(patient.model)
    if not folder.is_dir():
        if patient.config.backend.name in ("local", "trl"):
            yield wrong("model", f"{folder}: no such folder", "give the folder of a model with --model")
        else:
            yield untold("model", f"{patient.model}: not a folder here; the backend knows whether it has it")
        return
    if not any((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        yield wrong("model", f"{folder}: no config.json", "give the folder of a model, as save_pretrained writes it")
        return
    size = model_size(folder)
    if size is None:
        yield wrong("model", f"{folder}: no *.safetensors", "save the weights with save_pretrained")
    else:
        yield fine("model", f"{folder}: {size.num_parameters / 1e6:,.1f} M parameters")
    try:
        tokenizer = ChatTokenizer.from_folder(folder)
        if not tokenizer.has_template and patient.pairs is not None and begins_with_text(patient.pairs):
            yield fine("template", "none, and none is needed: the pairs are raw text")
            return
        found = check_template(tokenizer)
    except TokensError as error:
        yield wrong("template", str(error), "bring tokenizer.json and a chat template, as save_pretrained writes them")
        return
    quirks = ", ".join(quirk.name for quirk in found.quirks)
    if found.is_supported:
        yield fine("template", "supported" + (f"; quirks: {quirks}" if quirks else ""))
    else:
        yield wrong("template", f"not supported: {quirks}", f"pairwright tokens check --tokenizer {folder}")


def check_memory(patient: Patient) -> Iterator[Finding]:
    size = _trained_here(patient)
    if size is None:
        return
    is_sharded = patient.config.train.sharding != "none"
    memory, where = memory_available(shared=is_sharded)
    needed = needs(size, patient.config.train).memory_bytes
    message = (
        f"about {_gigabytes(needed)} for weights, reference, gradients and optimizer; {_gigabytes(memory)} {where}"
    )
    if needed <= memory:
        yield fine("memory", message)
    elif is_sharded:  # by how many machines is known to whoever starts them
        yield untold(
            "memory", f"{message}; the shards need {math.ceil(needed / max(memory, 1))} machines like this one"
        )
    else:
        way_out = "train.finetuning_type: lora, train.sharding: full on more GPUs, a smaller model, or another backend"
        yield wrong("memory", message, f"train with {way_out}")


def check_disk(patient: Patient) -> Iterator[Finding]:
    place = next(path for path in (patient.output, *patient.output.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    size = _trained_here(patient)
    needed = needs(size, patient.config.train).disk_bytes if size is not None else 2**30
    message = f"about {_gigabytes(needed)} for checkpoints and the result; {_gigabytes(free)} free at {place}"
    if needed > free:
        yield wrong(
            "disk", message, "choose another folder with -o, keep fewer checkpoints (train.keep_top_k), or free some"
        )
    else:
        yield fine("disk", message)


def check_packages(patient: Patient) -> Iterator[Finding]:
    for package, extra in _PACKAGES.get(patient.config.backend.name, {}).items():
        if find_spec(package) is None:
            yield wrong("packages", f"{package} is not installed", f"pip install 'pairwright[{extra}]'")
        else:
            yield fine("packages", f"{package} is installed")


def check_programs(patient: Patient) -> Iterator[Finding]:
    backend = patient.config.backend
    launcher = ("sbatch", "sacct", "scancel") if backend.nemo_rl.launcher == "slurm" else ("uv",)
    wanted = {"trl": backend.trl.command[:1], "nemo-rl": launcher}
    for program in wanted.get(backend.name, ()):
        if shutil.which(program) is None:
            yield wrong(
                "programs",
                f"{program}: not found",
                "install it, or write the files with --no-launch and run them elsewhere",
            )
        else:
            yield fine("programs", f"{program}: found")


def _trained_here(patient: Patient) -> Size | None:
    """The size of the model, if it is this machine that trains it."""
    if patient.model is None or patient.config.backend.name not in ("local", "trl"):
        return None
    folder = Path(patient.model)
    return model_size(folder) if folder.is_dir() else None


def _gigabytes(number: int) -> str:
    return f"{number / 2**30:,.1f} GB"
