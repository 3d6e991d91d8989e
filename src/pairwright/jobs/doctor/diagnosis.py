"""Checks the requirements of a run; memory.py estimates the memory and disk space that training needs.

Each check yields findings: passed, failed with a suggested fix, or undetermined. Checks modify nothing and train
nothing. An error inside a check is reported as a finding.
"""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pairwright.errors import PairwrightError
from pairwright.jobs.doctor.findings import Finding, Patient, Verdict, fine, untold, warn, wrong
from pairwright.jobs.doctor.memory import Size, generation_needs, memory_available, model_size, needs
from pairwright.jobs.doctor.services import check_policy, check_service
from pairwright.jobs.doctor.token_checks import check_tokens
from pairwright.sources.files import expand_paths

# backend -> package -> the pairwright extra that installs it
_PACKAGES = {
    "local": {"torch": "train", "transformers": "train"},
    "nemo-customizer": {"httpx": "customizer", "huggingface_hub": "customizer"},
    "nemo-platform": {"httpx": "customizer"},
    "trl": {"torch": "train", "trl": "trl", "datasets": "trl"},
}


def diagnose(patient: Patient) -> list[Finding]:
    findings: list[Finding] = []
    for check in (
        check_sources, check_tasks, check_policy, check_pairs, check_model, check_tokens, check_device, check_memory,
        check_disk, check_packages, check_programs, check_service,
    ):  # fmt: skip
        try:
            findings += check(patient)
        except (PairwrightError, OSError) as error:
            findings.append(Finding(check.__name__.removeprefix("check_"), Verdict.FAILED, str(error)))
    return findings


def check_sources(patient: Patient) -> Iterator[Finding]:
    for path in patient.config.sources.paths:
        try:
            num_files = len(expand_paths([path]))
        except PairwrightError as error:
            yield wrong("sources", str(error), "correct sources.paths")
            continue
        yield fine("sources", f"{path}: {num_files} file{'s' if num_files != 1 else ''}")


def check_tasks(patient: Patient) -> Iterator[Finding]:
    from pairwright.collection.tasks import load_tasks
    from pairwright.config.user_code import WORKFLOWS, load_function

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
    from pairwright.pairs.pair_stats import lint_pairs
    from pairwright.pairs.pair_table import count_pairs

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
    import tempfile

    from pairwright.jobs.dataset import UNFAITHFUL, write_dataset

    backend = patient.config.backend
    is_sft = backend.nemo_customizer.hyperparameters.training_type == "sft"
    targets = {
        "nemo-customizer": ("customizer-sft" if is_sft else "customizer", backend.nemo_customizer.validation),
        "nemo-platform": (
            "nemo-platform" if backend.nemo_platform.tool_calls == "refuse" else "nemo-platform-text",
            backend.nemo_platform.validation,
        ),
        "nemo-rl": (f"nemo-rl-{backend.nemo_rl.dataset}", backend.nemo_rl.validation),
    }
    if patient.pairs is None or backend.name not in targets:
        return
    target, share = targets[backend.name]
    # Exported to a temporary folder with the code of the job, so the refusals are the same.
    with tempfile.TemporaryDirectory(prefix="pairwright-doctor-") as folder:
        try:
            dataset = write_dataset(
                patient.pairs,
                Path(folder),
                target=target,
                names=("a.jsonl", "b.jsonl"),
                validation=share,
                seed=patient.config.seed,
                history=backend.nemo_customizer.use_full_message_history,
            )
        except PairwrightError as error:
            yield wrong("dataset", str(error), "the page Exports of the documentation lists what each trainer supports")
            return
    odd = sum(dataset.refused.values()) + sum(dataset.noted.get(reason, 0) for reason in UNFAITHFUL)
    if odd:
        way_out = "the page Exports of the documentation has the reasons; the local backend has no such limits"
        yield wrong("dataset", f"as {target}: {dataset}", way_out)
    else:
        yield fine("dataset", f"as {target}: {dataset}")


def check_model(patient: Patient) -> Iterator[Finding]:
    from pairwright.export.exporter import begins_with_text
    from pairwright.tokens import ChatTokenizer, TokensError, check_template

    if patient.model is None:
        return
    folder = Path(patient.model)
    if not folder.is_dir():
        if patient.config.backend.name in ("local", "trl"):
            yield wrong("model", f"{folder}: no such folder", "give the folder of a model with --model")
        else:
            yield untold("model", f"{patient.model}: not a local folder; only the backend can check this name")
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
        report = check_template(tokenizer)
    except TokensError as error:
        yield wrong("template", str(error), "bring tokenizer.json and a chat template, as save_pretrained writes them")
        return
    quirks = ", ".join(quirk.name for quirk in report.quirks)
    if report.is_supported and not report.supports_tools and patient.config.tokens.tools_as_text == "off":
        way_out = "for an agent with tools: policy.tools_as_text and tokens.tools_as_text: hermes"
        yield warn("template", f"supported for plain chats, not for tools: {quirks} → {way_out}")
    elif report.is_supported:
        yield fine("template", "supported" + (f"; quirks: {quirks}" if quirks else ""))
    else:
        yield wrong("template", f"not supported: {quirks}", f"pairwright tokens check --tokenizer {folder}")


def check_device(patient: Patient) -> Iterator[Finding]:
    if patient.config.backend.name != "local" or find_spec("torch") is None:
        return
    from pairwright.generate.devices import check_precision, choose_device, find_device

    train = patient.config.train
    try:
        device = choose_device(train.device)
        check_precision(device, train.precision)
    except PairwrightError as error:
        yield wrong("device", str(error), "leave out train.device, or set an available one")
        return
    why = "set by train.device" if train.device is not None else find_device()[1]
    yield fine("device", f"{device} ({why})")


def check_memory(patient: Patient) -> Iterator[Finding]:
    """Compare the estimated memory with the free memory, if the model is trained locally."""
    size = _size_if_local(patient)
    if size is None:
        return
    train = patient.config.train
    memory, where = memory_available()
    needed = needs(size, train)
    message = f"about {_gigabytes(needed.state)} for weights, gradients and optimizer"
    if needed.activations:
        tokens = f"train.micro_batch_tokens: {train.micro_batch_tokens:,}"
        message += f", up to {_gigabytes(needed.activations)} for activations ({tokens})"
    else:
        message += "; activations are not counted: config.json does not have the sizes of the layers"
    message += f"; {_gigabytes(memory)} {where}"
    if needed.memory_bytes <= memory:
        yield fine("memory", message)
    elif needed.state <= memory:
        yield warn("memory", f"{message}: lower train.micro_batch_tokens, or set train.gradient_checkpointing")
    else:
        way_out = "train.finetuning_type: lora, a smaller model, or another backend (trl: FSDP on several GPUs)"
        yield wrong("memory", message, f"train with {way_out}")
    if patient.config.collect.workflow is not None and patient.config.policy.base_url is None:
        yield _check_generation(patient, size, memory)


def _check_generation(patient: Patient, size: Size, memory: int) -> Finding:
    """Check the memory of a local policy: the same model, and a cache that grows with concurrent requests."""
    policy = patient.config.policy
    needed = generation_needs(size, policy)
    message = f"collecting: up to {_gigabytes(needed)} for weights and cache (policy.max_batch_tokens: "
    message += f"{policy.max_batch_tokens:,})"
    if needed <= memory:
        return fine("memory", message)
    return warn("memory", f"{message}: lower policy.max_batch_tokens or collect.max_concurrency")


def check_disk(patient: Patient) -> Iterator[Finding]:
    # The output may not exist yet: use its nearest existing parent.
    place = next(path for path in (patient.output, *patient.output.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    size = _size_if_local(patient)
    # 1 GiB for exports and logs of jobs whose model is elsewhere.
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
    wanted = {"trl": backend.trl.command[:1], "nemo-rl": ("uv",)}
    for program in wanted.get(backend.name, ()):
        if shutil.which(program) is None:
            way_out = "install it, or write the files with --no-launch and run them elsewhere"
            yield wrong("programs", f"{program}: not found", way_out)
        else:
            yield fine("programs", f"{program}: found")


def _size_if_local(patient: Patient) -> Size | None:
    if patient.model is None or patient.config.backend.name not in ("local", "trl"):
        return None
    folder = Path(patient.model)
    return model_size(folder) if folder.is_dir() else None


def _gigabytes(number: int) -> str:
    return f"{number / 2**30:,.1f} GB"
