"""Serialization, compared with Trinity's own functions (trinity-rft, installed without dependencies).

20,000 experiences of about 600 tokens with log-probabilities and tool-calling messages.
"""

from typing import Any

import numpy as np

from bench.measure import best_cpu, row
from pairwright import EID, Experience, Message, ToolCall, dumps_many, loads_many

NUM_EXPERIENCES = 20_000
WORDS = [
    "the", "flight", "booking", "agent", "calls", "a", "tool", "to", "get", "reservation", "details", "and", "then",
    "updates", "passenger", "baggage", "price", "economy", "cabin", "date", "time", "origin", "destination", "user",
    "id", "status", "error",
]  # fmt: skip


def make_rows(num_rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return plain data for both sides: tokens, log-probabilities, mask, reward, chat messages."""
    rng = np.random.default_rng(seed)

    def text(num_words: int) -> str:
        return " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), num_words))

    rows = []
    for number in range(num_rows):
        num_tokens, num_prompt = int(rng.integers(500, 700)), int(rng.integers(80, 160))
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"You are an airline agent. {text(20)}"},
            {"role": "user", "content": text(25)},
        ]
        for _ in range(3):
            call_id = f"call_{rng.integers(1 << 40):x}"
            arguments = f'{{"reservation_id": "{rng.integers(1 << 24):X}"}}'
            function = {"name": "get_reservation", "arguments": arguments}
            calls = [{"id": call_id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "content": text(30), "tool_call_id": call_id, "name": "get_reservation"})
        messages.append({"role": "assistant", "content": text(30)})
        rows.append(
            {
                "task": number // 8,
                "run": number % 8,
                "tokens": rng.integers(0, 151_000, num_tokens, dtype=np.int32),
                "prompt_length": num_prompt,
                "logprobs": -rng.random(num_tokens - num_prompt, dtype=np.float32),
                "action_mask": rng.random(num_tokens - num_prompt) < 0.5,
                "reward": float(rng.random()),
                "messages": messages,
            }
        )
    return rows


def ours(rows: list[dict[str, Any]]) -> list[Experience]:
    return [
        Experience(
            eid=EID(0, row["task"], row["run"]),
            kind="multi_turn",
            prompt=[_message(message) for message in row["messages"][:2]],
            completion=[_message(message) for message in row["messages"][2:]],
            model_version=3,
            **{name: row[name] for name in ("tokens", "prompt_length", "logprobs", "action_mask", "reward")},
        )
        for row in rows
    ]


def theirs(rows: list[dict[str, Any]], trinity: Any, torch: Any) -> list[Any]:
    return [
        trinity.Experience(
            eid=trinity.EID(batch=0, task=row["task"], run=row["run"]),
            prompt_length=row["prompt_length"],
            reward=row["reward"],
            messages=row["messages"],
            info={"model_version": 3},
            **{name: torch.from_numpy(row[name]) for name in ("tokens", "logprobs", "action_mask")},
        )
        for row in rows
    ]


def main() -> None:
    import torch
    from trinity.common import experience as trinity

    torch.set_num_threads(1)
    rows = make_rows(NUM_EXPERIENCES)
    mine, their = ours(rows), theirs(rows, trinity, torch)
    payload, their_payload = dumps_many(mine), trinity.Experience.serialize_many(their)
    assert loads_many(payload) == mine

    encode = best_cpu(lambda: dumps_many(mine), lambda: trinity.Experience.serialize_many(their), rounds=3)
    decode = best_cpu(lambda: loads_many(payload), lambda: trinity.Experience.deserialize_many(their_payload), rounds=3)
    per = 1e6 / NUM_EXPERIENCES
    print(f"### Records: {NUM_EXPERIENCES:,} experiences of about 600 tokens, against Trinity {_version()}\n")
    print("| what | pairwright | Trinity | ratio | target |\n|---|---|---|---|---|")
    print(row("encode, CPU a record", encode[0] * per, encode[1] * per, "µs", "≥ 5×"))
    print(row("decode to records, CPU a record", decode[0] * per, decode[1] * per, "µs", "≥ 2×"))
    sizes = len(payload) / NUM_EXPERIENCES, len(their_payload) / NUM_EXPERIENCES
    print(row("bytes a record", *sizes, "B", "≤ 0.75×", higher_is_better=False), "\n")


def _message(value: dict[str, Any]) -> Message:
    calls = [
        ToolCall(call["function"]["name"], call["function"]["arguments"], call["id"])
        for call in value.get("tool_calls", ())
    ]
    return Message(
        value["role"],
        value["content"],
        tool_calls=calls,
        tool_call_id=value.get("tool_call_id"),
        name=value.get("name"),
    )


def _version() -> str:
    from importlib.metadata import version

    return version("trinity-rft")
