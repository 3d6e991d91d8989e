"""Foreign names of options: tables of NAT's finetuning keys, and the translation of a `pairs` section (`own_names`).

Names and defaults are those of nvidia-nat 1.9 with nvidia-nat-nemo-customizer 1.9 (docs/how-to/from-nat.md).
"""

from collections.abc import Mapping
from typing import Any

from pairwright.errors import ConfigError

# Keys of NAT's finetuning configuration. `*` stands for the component that `finetuning` names.

COMPONENTS = {
    "trajectory_builders": ("trajectory_builder", ("dpo_traj_builder",)),
    "trainers": ("trainer", ("nemo_customizer_trainer",)),
    "trainer_adapters": ("trainer_adapter", ("nemo_customizer_trainer_adapter",)),
}
"""Section: the key of `finetuning` that names one of its entries, and the types that we know."""

LLM_TYPES = ("openai", "nim")
DATASET_TYPES = ("json", "jsonl", "csv", "parquet")

_CUSTOMIZER = "backend.nemo_customizer"
RENAMED = {
    "trainers.*.num_runs": "collect.num_runs",
    "trainers.*.continue_on_collection_error": "collect.continue_on_collection_error",
    "trainers.*.wait_for_completion": f"{_CUSTOMIZER}.wait_for_completion",
    "trainer_adapters.*.deploy_on_completion": "loop.deploy",
    **{
        f"trainer_adapters.*.{name}": f"{_CUSTOMIZER}.{name}"
        for name in (
            "entity_host",
            "datastore_host",
            "namespace",
            "dataset_name",
            "dataset_output_dir",
            "create_namespace_if_missing",
            "customization_config",
            "use_full_message_history",
            "poll_interval_seconds",
            "deployment_timeout_seconds",
        )
    },
    "eval.general.max_concurrency": "collect.max_concurrency",
    "eval.general.dataset.file_path": "collect.dataset",
    "eval.general.dataset.id_key": "collect.id_field",
    "finetuning.run_configuration.dataset": "collect.dataset",
    "finetuning.run_configuration.validation_dataset": "evaluate.dataset",
    "llms.*.model_name": "policy.model",
    "llms.*.model": "policy.model",
    "llms.*.base_url": "policy.base_url",
    "llms.*.temperature": "policy.temperature",
    "llms.*.top_p": "policy.top_p",
    "llms.*.max_tokens": "policy.max_tokens",
    "llms.*.max_retries": "policy.max_retries",
    "llms.*.request_timeout": "policy.timeout_seconds",
}
"""Keys whose value is ours as it stands."""

BELOW = {
    "trainer_adapters.*.hyperparameters": f"{_CUSTOMIZER}.hyperparameters",
    "trainer_adapters.*.deployment_config": f"{_CUSTOMIZER}.deployment_config",
}
"""Sections whose keys have the same names in ours."""

PAIRS = (
    "trajectory_builders.*.exhaustive_pairs",
    "trajectory_builders.*.min_score_diff",
    "trajectory_builders.*.max_pairs_per_turn",
    "trajectory_builders.*.reward_from_score_diff",
    "trainers.*.deduplicate_pairs",
    "trainers.*.max_pairs",
)
"""Keys that `pairs` understands (config/option_names.py)."""

STATUS_FAILURES = "trainer_adapters.*.max_consecutive_status_failures"
STORE_TOKEN = "trainer_adapters.*.hf_token"
API_KEY = "llms.*.api_key"
WITHOUT_EFFECT = {
    "trajectory_builders.*.require_multiple_candidates": True,
    "finetuning.enabled": True,
    "finetuning.num_epochs": 1,
    "finetuning.target_functions": ["<workflow>"],
    "finetuning.run_configuration.result_json_path": "$",
    "eval.general.dataset.structure.disable": False,
}
"""Values that change nothing: a run of ours does the same."""

DEFAULTS = {
    "trajectory_builders.*.reward_from_score_diff": True,
    "trainers.*.continue_on_collection_error": False,
    "trainer_adapters.*.dataset_name": "nat-dpo",
    STATUS_FAILURES: 3,
    "eval.general.max_concurrency": 8,
}
"""Defaults of NAT's that are not ours; they are written out, so that leaving a key out means what it meant."""
NIM_MAX_TOKENS = 300
IMAGE = "nvcr.io/nim/nvidia/nemotron-3.5-lightning-30b-a3b"

_AGENT = "a part of the agent in NAT; here collect.workflow names the function that plays a task"
_FOLDER = "files go to runs/<name>: set name, or --output"
_SCORES = "the pairs come from the scores of the candidates; to score what has none, set collect.scorer"
_ENDPOINT = "how requests are repeated is set by policy.max_retries, retry_seconds and max_retry_seconds"
_STEP = (
    "pairwright import --step-name picks the step of NAT's files; a workflow here records only what is to be compared"
)
REASONS = {
    "trajectory_builders.*.ttc_step_name": _STEP,
    "trajectory_builders.*.custom_step_name": _STEP,
    "trajectory_builders.*.require_multiple_candidates": "changes nothing: a pair needs two candidates, in NAT as well",
    "workflow": "a NAT workflow; write it as an async function of a task and name it in collect.workflow",
    **dict.fromkeys(
        (
            "functions.*", "function_groups.*", "middleware.*", "embedders.*", "memory.*", "object_stores.*",
            "retrievers.*", "ttc_strategies.*", "authentication.*", "general",
        ),
        _AGENT,
    ),
    "optimizer": "NAT's search for parameters and prompts is no part of a training run",
    "eval.evaluators.*": _SCORES,
    "eval.general.output": _FOLDER,
    "eval.general.output_dir": _FOLDER,
    "eval.general.dataset.filter": "filter the file, or skip tasks in the workflow",
    "eval.general.dataset.s3": "fetch the file and set collect.dataset",
    "eval.general.dataset.remote_file_path": "fetch the file and set collect.dataset",
    "eval.general.dataset.structure": "a task is the whole row of the dataset; the workflow reads the columns it needs",
    "finetuning.enabled": "NAT would not train with this file; pairwright run does",
    "finetuning.output_dir": _FOLDER,
    "finetuning.reward_function": _SCORES,
    "trajectory_builders.*.reward": _SCORES,
    "trainers.*.reward": _SCORES,
    "trainer_adapters.*.reward": _SCORES,
    "finetuning.num_epochs": "NAT's trainer does not use it; epochs are in hyperparameters, rounds in loop.rounds",
    "finetuning.target_functions": "the workflow decides what it records",
    "finetuning.target_model": "no entry of llms has this model: set policy.model and policy.base_url",
    "finetuning.curriculum_learning": "NAT's trainer does not use it; to have it, set pairs.curriculum",
    "finetuning.run_configuration": "an option of NAT's command line",
    "llms.*.seed": "every question has a seed of its own, drawn from seed",
    "llms.*.do_auto_retry": _ENDPOINT,
    "llms.*.num_retries": _ENDPOINT,
    "llms.*.retry_on_status_codes": _ENDPOINT,
    "llms.*.retry_on_errors": _ENDPOINT,
}  # fmt: skip
"""Why a key has no counterpart, and the way out. The longest that fits counts."""
OTHER_REASONS = {"llms": "if it belongs into the body of a request, put it into policy.extra_body"}
"""The same for keys of a section that no reason names."""


# The `pairs` section in the names of NAT's trajectory builder and NeMo Gym's script.

# Options that differ only in their name
_RENAMED = {
    "min_score_diff": "min_gap",
    "max_pairs_per_turn": "max_pairs_per_group",
    "deduplicate_pairs": "dedupe",
    "high_threshold": "high",
    "low_threshold": "low",
}
# Booleans of theirs: what true and false mean in our options
_SWITCHES: dict[str, dict[bool, dict[str, Any]]] = {
    "exhaustive_pairs": {True: {"strategy": "all"}, False: {"strategy": "best-worst"}},
    "reward_from_score_diff": {True: {"weight": "gap"}, False: {"weight": "chosen"}},
    "require_multiple_candidates": {True: {}, False: {}},
    "same_prompt": {True: {"strategy": "best-worst"}, False: {"strategy": "stratified", "across_groups": True}},
    "stratified": {True: {"strategy": "stratified"}, False: {}},
}
_STRATEGIES = {"same_prompt": "best-worst", "given": "imported"}  # Gym's name, and our old one
_CURRICULUM = {
    "initial_percentile": "curriculum_start",
    "increment_percentile": "curriculum_increment",
    "expansion_interval": "curriculum_interval",
}
_NAT_START = 0.3  # where NAT's curriculum begins if its section does not say
_NOT_OURS = {
    "min_reward_diff": "a group without different rewards gives no pair; min_gap bounds the gap of each",
    "random_subsample": "max_pairs draws a sample",
}
FOREIGN_NAMES = (*_RENAMED, *_SWITCHES)


def own_names(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with every name of NAT's or Gym's replaced by ours.

    >>> own_names({"exhaustive_pairs": False, "min_score_diff": 0.1})
    {'strategy': 'best-worst', 'min_gap': 0.1}
    """
    own: dict[str, Any] = {}
    origins: dict[str, str] = {}  # for each key of ours the foreign name that set it
    for name, value in section.items():
        if name == "strategy" and isinstance(value, str):
            value = _STRATEGIES.get(value, value)
        for key, setting in _translate(name, value).items():
            if key in own and own[key] != setting:
                raise ConfigError(
                    f"pairs.{name}: says {key} is {setting!r}, but {origins[key]} says {own[key]!r}: drop one"
                )
            own[key], origins[key] = setting, name
    return own


def _translate(name: str, value: Any) -> dict[str, Any]:
    if name == "curriculum_learning":
        return _curriculum(value)
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise ConfigError(f"pairs.{name}: got {value!r}, expected true or false")
        return _SWITCHES[name][value]
    return {_RENAMED.get(name, name): value}


def _curriculum(section: Any) -> dict[str, Any]:
    """NAT's section: tasks by mean reward, in stages that begin with a share of them and grow."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"pairs.curriculum_learning: got {section!r}, expected keys and values")
    # every key that NAT's section may have, with its default
    names = {"enabled": False, "sort_ascending": False, **dict.fromkeys(_CURRICULUM), **dict.fromkeys(_NOT_OURS)}
    for name, value in section.items():
        if name not in names:
            raise ConfigError(f"pairs.curriculum_learning: unknown key {name!r}; known keys: {', '.join(names)}")
        if name in _NOT_OURS and value is not None:
            raise ConfigError(f"pairs.curriculum_learning.{name}: leave it out: {_NOT_OURS[name]}")
    settings = {**names, **section}
    if not settings["enabled"]:
        return {}
    stages = {own: section[name] for name, own in _CURRICULUM.items() if section.get(name) is not None}
    # ascending means that tasks with the lowest mean reward, the hard ones, come first
    order = "hard-first" if settings["sort_ascending"] else "easy-first"
    return {"curriculum": order, "curriculum_start": _NAT_START, **stages}
