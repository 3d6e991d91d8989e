"""Identity of a collection: the settings that must not change, written at its start and compared on resume."""

import os
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collection.run_failures import CollectError
from pairwright.config import Config, ScorerConfig
from pairwright.paths import write_json
from pairwright.records.messages import Json

FILE = "collection.json"
# Fields of `policy` and `judge` that affect sampling; limits and addresses may change on resume
_SAMPLING = ("model", "model_version", "temperature", "top_p", "max_tokens", "num_candidates", "stop", "extra_body")


def begin_or_resume(folder: Path, config: Config, *, resume: bool, workflow: str) -> str:
    """Return the id of the collection in a folder: a new one, or that of the resumed collection."""
    identity = _identity(config, workflow)
    if not _is_begun(folder):
        folder.mkdir(parents=True, exist_ok=True)
        run_id = f"pairwright_{os.urandom(4).hex()}"
        write_json(folder / FILE, {"run_id": run_id, "identity": identity})
        return run_id
    if not resume:
        raise CollectError(
            f"{folder.parent}: already has a collection: add --resume to continue with it, or choose another folder"
        )
    return _resume(folder, identity)


def check_resumable(folder: Path, config: Config, *, workflow: str) -> None:
    """Raise the errors of `begin_or_resume` without writing anything."""
    if _is_begun(folder):
        _resume(folder, _identity(config, workflow))


def _is_begun(folder: Path) -> bool:
    """Return whether there is something to resume; a collection that ended before its first answer does not count."""
    logs = [folder / name for name in ("ledger.jsonl", "calls.jsonl")]
    return (folder / FILE).exists() and any(log.exists() and log.stat().st_size for log in logs)


def _resume(folder: Path, identity: Json) -> str:
    """Return the id of the collection in a folder; raises CollectError if its identity differs."""
    known = msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Any])
    before: Json = known["identity"]
    changed = [key for key in identity if before.get(key) != identity[key]]
    if changed:
        changes = "; ".join(f"{key} was {before.get(key)!r}, is {identity[key]!r}" for key in changed)
        raise CollectError(
            f"{folder.parent}: the collection there has other settings ({changes}): restore the configuration, "
            "or choose another folder"
        )
    return str(known["run_id"])


def _identity(config: Config, workflow: str) -> Json:
    policy = config.policy.model_dump(mode="json")
    scorer = config.collect.scorer.model_dump(mode="json")
    judge = config.collect.scorer.judge.as_policy().model_dump(mode="json")
    # template variables are left out if empty, so that collections without them can be resumed
    variables = ("chat_template_kwargs",) if judge["chat_template_kwargs"] else ()
    scorer["judge"] = {key: judge[key] for key in (*_SAMPLING, *variables)}
    # these may change on resume: they do not change results
    for key in ("timeout_seconds", "max_concurrency", "prompt_price", "completion_price"):
        del scorer[key]
    # defaults are left out, so that collections without these keys can be resumed
    for key in ("criteria", "max_result_characters"):
        if scorer[key] == ScorerConfig.model_fields[key].get_default(call_default_factory=True):
            del scorer[key]
    identity: Json = {
        "seed": config.seed,
        "batch": config.collect.batch,
        "workflow": workflow,
        "scorer": scorer,
        **{f"policy.{key}": policy[key] for key in _SAMPLING},
        # null if empty, so that collections without this key can be resumed
        "policy.chat_template_kwargs": policy["chat_template_kwargs"] or None,
        "policy.tools_as_text": None if policy["tools_as_text"] == "off" else policy["tools_as_text"],
    }
    # a round trip through JSON, so that it compares equal to the file (tuples become lists)
    plain: Json = msgspec.json.decode(msgspec.json.encode(identity))
    return plain
