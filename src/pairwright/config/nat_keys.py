"""Tables of NAT's finetuning keys: our name for each, or why it has no counterpart.

Names and defaults are those of nvidia-nat 1.9 with nvidia-nat-nemo-customizer 1.9 (docs/how-to/from-nat.md). `*`
stands for the component that `finetuning` names.
"""

COMPONENTS = {
    "trajectory_builders": "trajectory_builder",
    "trainers": "trainer",
    "trainer_adapters": "trainer_adapter",
}
"""Section: the key of `finetuning` that selects one of its entries."""

TYPES = {
    "trajectory_builders.*._type": ("dpo_traj_builder",),
    "trainers.*._type": ("nemo_customizer_trainer",),
    "trainer_adapters.*._type": ("nemo_customizer_trainer_adapter",),
    "llms.*._type": ("openai", "nim"),
    "eval.general.dataset._type": ("json", "jsonl", "csv", "parquet"),
}
"""The types of components that are converted."""

_CUSTOMIZER = "backend.nemo_customizer"
RENAMED = {
    "trainers.*.num_runs": "collect.num_runs",
    "trainers.*.continue_on_collection_error": "collect.continue_on_collection_error",
    "trainers.*.wait_for_completion": f"{_CUSTOMIZER}.wait_for_completion",
    "trainer_adapters.*.deploy_on_completion": "loop.deploy",
    **{
        f"trainer_adapters.*.{name}": f"{_CUSTOMIZER}.{name}"
        for name in (
            "entity_host", "datastore_host", "namespace", "dataset_name", "dataset_output_dir",
            "create_namespace_if_missing", "customization_config", "use_full_message_history", "poll_interval_seconds",
            "deployment_timeout_seconds",
        )
    },
    "eval.general.max_concurrency": "collect.max_concurrency",
    "eval.general.dataset.file_path": "collect.dataset",
    "eval.general.dataset.id_key": "collect.id_field",
    "finetuning.run_configuration.dataset": "collect.dataset",
    "finetuning.run_configuration.validation_dataset": "evaluate.dataset",
    **{
        f"llms.*.{name}": f"policy.{name}"
        for name in ("model", "base_url", "temperature", "top_p", "max_tokens", "max_retries")
    },
    "llms.*.model_name": "policy.model",
    "llms.*.request_timeout": "policy.timeout_seconds",
}  # fmt: skip
"""Keys whose value is copied unchanged."""

BELOW = {
    "trainer_adapters.*.hyperparameters": f"{_CUSTOMIZER}.hyperparameters",
    "trainer_adapters.*.deployment_config": f"{_CUSTOMIZER}.deployment_config",
}
"""Sections whose keys have the same names in our counterpart."""

PAIRS = (
    "trajectory_builders.*.exhaustive_pairs",
    "trajectory_builders.*.min_score_diff",
    "trajectory_builders.*.max_pairs_per_turn",
    "trajectory_builders.*.reward_from_score_diff",
    "trainers.*.deduplicate_pairs",
    "trainers.*.max_pairs",
)
"""Keys that `pairs` understands (`own_names` in config/pairs_names.py)."""

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
"""Values that equal our default behaviour."""

DEFAULTS = {
    "trajectory_builders.*.reward_from_score_diff": True,
    "trainers.*.continue_on_collection_error": False,
    "trainer_adapters.*.dataset_name": "nat-dpo",
    STATUS_FAILURES: 3,
    "eval.general.max_concurrency": 8,
}
"""NAT defaults that differ from ours; they are written out, so that a missing key keeps its meaning."""
NIM_MAX_TOKENS = 300
IMAGE = "nvcr.io/nim/meta/llama-3.1-8b-instruct"

_AGENT = "a part of the agent in NAT; here collect.workflow names the function that plays a task"
_FOLDER = "files go to runs/<name>: set name, or --output"
_SCORES = "pairs come from the scores of candidates; to score unscored candidates, set collect.scorer"
_ENDPOINT = "policy.max_retries limits how often a request is repeated"
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
    "optimizer": "NAT's search for parameters and prompts is not a part of a training run",
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
    "llms.*.seed": "every request has its own seed, derived from the key seed",
    "llms.*.do_auto_retry": _ENDPOINT,
    "llms.*.num_retries": _ENDPOINT,
    "llms.*.retry_on_status_codes": _ENDPOINT,
    "llms.*.retry_on_errors": _ENDPOINT,
}  # fmt: skip
"""Why a key has no counterpart, and what to do instead. The longest matching pattern counts."""
OTHER_REASONS = {"llms": "if it belongs in the body of a request, put it in policy.extra_body"}
"""The same for the other keys of a section."""
