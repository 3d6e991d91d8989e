"""What a collection is a collection of: written when it begins, compared when it is resumed.

Going on with another workflow, model, scorer or seed would mix what must not be mixed under one name. More tasks, more
runs, another address of the same model, another concurrency are fine.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collect.failures import CollectError
from pairwright.config import Config
from pairwright.messages import Json
from pairwright.places import write_json

FILE = "collection.json"
_SAMPLING = ("model", "model_version", "temperature", "top_p", "max_tokens", "num_candidates", "stop", "extra_body")


def begin_or_resume(folder: Path, config: Config, *, resume: bool, workflow: str) -> str:
    """The id of the collection in a folder, a new one or the one that is resumed."""
    identity = _identity(config, workflow)
    if not _is_begun(folder):
        folder.mkdir(parents=True, exist_ok=True)
        run_id = f"pairwright_{os.urandom(4).hex()}"
        write_json(folder / FILE, {"run_id": run_id, "identity": identity})
        return run_id
    if not resume:
        raise CollectError(
            f"{folder.parent}: already has a collection: add --resume to go on with it, or choose another folder"
        )
    return _resume(folder, identity)


def check_resumable(folder: Path, config: Config, *, workflow: str) -> None:
    """Refuse as `begin_or_resume` would, and write nothing."""
    if _is_begun(folder):
        _resume(folder, _identity(config, workflow))


def _is_begun(folder: Path) -> bool:
    """Whether there is something to resume: what ended before its first answer, for want of a model say, is not."""
    logs = [folder / name for name in ("ledger.jsonl", "calls.jsonl")]
    return (folder / FILE).exists() and any(log.exists() and log.stat().st_size for log in logs)


def _resume(folder: Path, identity: Json) -> str:
    """The id of the collection in a folder, if it is a collection of the same things."""
    known = msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Any])
    before: Json = known["identity"]
    changed = [key for key in identity if before.get(key) != identity[key]]
    if changed:
        changes = "; ".join(f"{key} was {before.get(key)!r}, is {identity[key]!r}" for key in changed)
        raise CollectError(
            f"{folder.parent}: the collection there is another one ({changes}): restore the configuration, "
            "or choose another folder"
        )
    return str(known["run_id"])


def _identity(config: Config, workflow: str) -> Json:
    policy = config.policy.model_dump(mode="json")
    scorer = config.collect.scorer.model_dump(mode="json")
    scorer["judge"] = {key: scorer["judge"][key] for key in _SAMPLING}
    for key in ("timeout_seconds", "max_concurrency"):
        del scorer[key]
    identity: Json = {
        "seed": config.seed,
        "batch": config.collect.batch,
        "workflow": workflow,
        "scorer": scorer,
        **{f"policy.{key}": policy[key] for key in _SAMPLING},
    }
    found: Json = msgspec.json.decode(msgspec.json.encode(identity))
    return found
