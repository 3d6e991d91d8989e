"""Builds pairs of candidates with NeMo Agent Toolkit's own DPO trajectory builder, in an interpreter that has it.

    python nat_builder.py CANDIDATES.jsonl ROWS.jsonl

Each candidate becomes a TTC_END step with TTCEventData, as a workflow of NAT emits it; the builder gets them as the
result of a finished evaluation, and its DPO items are written as rows.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nat.data_models.intermediate_step import (
    IntermediateStep,
    IntermediateStepPayload,
    IntermediateStepType,
    TTCEventData,
)
from nat.data_models.invocation_node import InvocationNode
from nat.plugins.customizer.dpo.config import DPOTrajectoryBuilderConfig
from nat.plugins.customizer.dpo.trajectory_builder import DPOTrajectoryBuilder

STEP = "stockroom"


def step_of(candidate: dict[str, Any]) -> IntermediateStep:
    data = TTCEventData(
        turn_id=candidate["turn"],
        candidate_index=candidate["index"],
        score=candidate["score"],
        input=candidate["input"],
        output=candidate["output"],
    )
    payload = IntermediateStepPayload(event_type=IntermediateStepType.TTC_END, name=STEP, data=data)
    node = InvocationNode(function_id="f", function_name="f")
    return IntermediateStep(parent_id="root", function_ancestry=node, payload=payload)


async def build(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pair the best with the worst candidate of each turn, with the same minimum gap as the other recipes."""
    builder = DPOTrajectoryBuilder(
        DPOTrajectoryBuilderConfig(ttc_step_name=STEP, exhaustive_pairs=False, min_score_diff=0.1)
    )
    by_example: dict[str, list[IntermediateStep]] = {}
    for candidate in candidates:
        by_example.setdefault(candidate["example"], []).append(step_of(candidate))
    items = [SimpleNamespace(id=name, trajectory=steps) for name, steps in by_example.items()]
    result = SimpleNamespace(eval_input=SimpleNamespace(eval_input_items=items))
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ended.set_result(result)
    builder.evaluation_runs["run"] = ended
    collection = await builder.finalize("run")
    return [
        {"prompt": item["prompt"], "chosen": item["chosen_response"], "rejected": item["rejected_response"]}
        for group in collection.trajectories
        for trajectory in group
        for item in [episode.model_dump() for episode in trajectory.episode]
    ]


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    candidates = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    rows = asyncio.run(build(candidates))
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
