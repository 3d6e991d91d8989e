"""Rewrites the collected runs for recipes that need another form: `experience: rewritten_runs.py:NAME` in recipes.yaml.

without_failed_turns    failed turns and the answers of tools to them are deleted from the transcripts
step_rewards            the verdict on each acting turn as its reward (1 or -1), for grpo
nat_rows                the pairs of NeMo Agent Toolkit's DPO trajectory builder, in its own interpreter: NAT_PYTHON
gym_rows                the pairs of the script in NeMo Gym's guide to DPO: NEMO_GYM_GUIDE is the guide's Markdown file
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from credit import generated_turns

import pairwright as pw
from pairwright.errors import ConfigError

HERE = Path(__file__).resolve().parent


def without_failed_turns(experience: Path, folder: Path, config: Any) -> None:
    _write(folder, [_delete_failed(run) for run in pw.Table(experience).records()])


def _delete_failed(run: Any) -> Any:
    """Return a run without its failed turns and without its recorded ids, which are those of the whole run."""
    verdicts = dict(zip(generated_turns(run), run.info["verdicts"], strict=True))
    first, kept, is_deleted = len(run.prompt), [], False
    for place, message in enumerate(run.completion, first):
        if message.is_generated:
            is_deleted = verdicts[place] == 0
        if not is_deleted:
            kept.append(message)
    without_ids = dict.fromkeys(("tokens", "prompt_length", "logprobs", "action_mask"))
    return msgspec.structs.replace(run, completion=tuple(kept), errors=(), info={}, **without_ids)


def step_rewards(experience: Path, folder: Path, config: Any) -> None:
    _write(folder, [_reward_steps(run) for run in pw.Table(experience).records() if run.action_mask is not None])


def _reward_steps(run: Any) -> Any:
    mask = np.asarray(run.action_mask, bool)
    ends = np.flatnonzero(mask & ~np.append(mask[1:], False))  # the last token of each generated turn
    rewards = np.zeros(len(mask), np.float32)
    for end, verdict in zip(ends, run.info["verdicts"], strict=True):
        rewards[end] = 0.0 if verdict is None else 1.0 if verdict else -1.0
    return msgspec.structs.replace(run, token_level_reward=rewards)


def nat_rows(experience: Path, folder: Path, config: Any) -> None:
    """Write one candidate per generated turn, scored by the reward of its run; turns of one prompt are compared."""
    python = os.environ.get("NAT_PYTHON")
    if python is None:
        raise ConfigError("NAT_PYTHON: expected an interpreter that has nvidia-nat-nemo-customizer")
    candidates = [line for run in pw.Table(experience).records() for line in _candidates(run)]
    files = folder.parent / "nat_candidates.jsonl", folder.parent / "nat_rows.jsonl"
    _write_lines(files[0], candidates)
    _run([python, str(HERE / "nat_builder.py"), *map(str, files)])
    pw.import_traces(files[1], folder)


def _candidates(run: Any) -> Iterable[dict[str, Any]]:
    """Return candidates in NAT's form. Its messages have only a role and a text: calls are only in answers, as the
    model wrote them."""
    messages = [*run.prompt, *run.completion]
    chat = [{"role": message.role, "content": message.text} for message in messages]
    whole = [[message.role, message.text, [call.name for call in message.tool_calls]] for message in messages]
    for place in generated_turns(run):
        yield {
            "example": str(run.eid.task), "turn": json.dumps(whole[:place]), "index": run.eid.run,
            "input": chat[:place], "output": _written(messages[place]), "score": run.reward,
        }  # fmt: skip


def _written(message: Any) -> str:
    calls = [json.dumps({"name": call.name, "arguments": json.loads(call.arguments)}) for call in message.tool_calls]
    return message.text + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def gym_rows(experience: Path, folder: Path, config: Any) -> None:
    guide = os.environ.get("NEMO_GYM_GUIDE")
    if guide is None:
        raise ConfigError("NEMO_GYM_GUIDE: expected the Markdown file of NeMo Gym's guide to DPO training")
    block = re.search(r"```python\n(.*?argparse.*?)```", Path(guide).read_text(encoding="utf-8"), re.S)
    if block is None:
        raise ConfigError(f"{guide}: no Python script in it")
    script, rollouts, rows = (folder.parent / name for name in ("gym_script.py", "rollouts.jsonl", "gym_rows.jsonl"))
    script.write_text(block[1], encoding="utf-8")
    _write_lines(rollouts, [_rollout(run) for run in pw.Table(experience).records()])
    gap = ["--min_gap", str(config.pairs.min_gap)]
    _run([sys.executable, str(script), "--input", str(rollouts), "--output", str(rows), *gap])
    pw.import_traces(rows, folder)


def _rollout(run: Any) -> dict[str, Any]:
    """Return a run in NeMo Gym's form: items of OpenAI's Responses API."""
    output: list[dict[str, Any]] = []
    for message in run.completion:
        if message.role == "tool":
            output.append({"type": "function_call_output", "call_id": "call", "output": message.text})
            continue
        output += [
            {"type": "function_call", "call_id": "call", "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
        if not message.tool_calls:
            content = [{"type": "output_text", "text": message.text}]
            output.append({"type": "message", "role": "assistant", "content": content})
    prompt = [{"role": message.role, "content": message.text} for message in run.prompt]
    return {"responses_create_params": {"input": prompt}, "output": output, "reward": run.reward}


def _write(folder: Path, runs: list[Any]) -> None:
    with pw.Table(folder) as table:
        table.append(runs)


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(command[1]).name}: {' '.join(done.stderr.strip().splitlines()[-1:])}")
