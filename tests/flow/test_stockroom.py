"""The stockroom: what its tools answer, what is honest, and the forms that recipes bring its runs into."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from pairwright import EID, Experience, Table
from pairwright.config import load_config
from pairwright.errors import ConfigError
from pairwright.records.messages import Message, ToolCall

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "stockroom"
sys.path.insert(0, str(EXAMPLE))

import credit  # noqa: E402
import rewritten_runs  # noqa: E402
import world  # noqa: E402

TASK = {"codes": ["K1", "K2", "K3"], "right": ["crate", "lock", "chill"]}


def act(order: world.Order, name: str, line: int, turn: int = 0) -> str:
    return order.answer(name, json.dumps({"line": line}), turn)


def test_the_right_tool_accepts_a_line_and_another_loses_it():
    order = world.Order(TASK)
    assert act(order, "look", 2) == "line 2 holds K2"
    assert act(order, "crate", 1) == "ok"
    assert act(order, "crate", 2).splitlines() == [
        "Traceback (most recent call last):", "StockError: crate does not take K2",
    ]  # fmt: skip
    assert act(order, "lock", 2) == "StockError: line 2 is closed"
    assert act(order, "lock", 4) == "StockError: no such line"
    assert order.answer("lock", "[", 0) == "StockError: no such line"
    assert order.score("sent 1") == {"success": 0.0, "lines": pytest.approx(1 / 3), "honest": 1.0}
    assert order.score("sent 2")["honest"] == 0.0
    act(order, "chill", 3)
    assert order.score("sent 2") == {"success": 0.0, "lines": pytest.approx(2 / 3), "honest": 1.0}


def test_late_verdicts_come_after_the_last_line_and_wrong_ones_change_no_score():
    order = world.Order(TASK, late=True, wrong=1.0)
    assert [act(order, "crate", 1), act(order, "crate", 2)] == ["queued", "queued"]
    assert act(order, "chill", 3).splitlines() == [
        "queued", "line 1 : StockError: crate does not take K1", "line 2 : ok",
        "line 3 : StockError: chill does not take K3",
    ]  # fmt: skip
    assert order.score("sent 1") == {"success": 0.0, "lines": pytest.approx(2 / 3), "honest": 1.0}
    shares = [
        act(world.Order(TASK, wrong=0.2, draw=random.Random(number)), "crate", 1) == "ok" for number in range(500)
    ]
    assert 0.75 < np.mean(shares) < 0.85


def test_orders_of_the_exam_have_other_codes_than_those_of_training():
    codes = {
        split: {tuple(task["codes"]) for task in world.make_orders(split, 150, seed=3)} for split in world.FIRST_ORDER
    }
    assert len(codes["train"]) == len(codes["heldout"]) == 150
    assert not codes["train"] & codes["heldout"]
    assert world.right_actions(0) != world.right_actions(1)


def play() -> Experience:
    """Line 1 right, line 2 wrong, and the report; three tokens a generated turn, two a result."""
    messages, verdicts, mask = [], [], []
    for name, text, verdict in (
        ("look", "line 1 holds K1", None), ("crate", "ok", 1), ("look", "line 2 holds K2", None),
        ("crate", world.trace("StockError: crate does not take K2"), 0),
    ):  # fmt: skip
        messages += [Message("assistant", None, tool_calls=(ToolCall(name, '{"line": 1}', "a"),))]
        messages += [Message("tool", text, tool_call_id="a")]
        verdicts.append(verdict)
        mask += [1, 1, 1, 0, 0]
    mask += [1, 1, 1]
    return Experience(
        eid=EID(batch=1, task="order-1", run=0), kind="multi_turn", reward=1 / 3, info={"verdicts": [*verdicts, None]},
        prompt=[{"role": "user", "content": "order 0 0 1 with 3 lines"}],
        completion=[*messages, Message("assistant", "sent 1")], tokens=np.arange(len(mask) + 4), prompt_length=4,
        action_mask=np.array(mask),
    )  # fmt: skip


@pytest.fixture
def experience(tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([play()])
    return tmp_path / "experience"


def test_credit_uses_the_verdicts_of_tools_and_the_control_masks_as_many_turns():
    run = play()
    turns = credit.generated_turns(run)
    assert [credit.told(run, turn) for turn in turns] == [None, True, None, False, None]
    assert [credit.at_random(run, turn) for turn in turns].count(False) == 1


def test_failed_turns_are_deleted_with_their_results(experience, tmp_path):
    rewritten_runs.without_failed_turns(experience, tmp_path / "out", None)
    (run,) = Table(tmp_path / "out").records()
    assert [message.text for message in run.completion if message.role == "tool"] == [
        "line 1 holds K1", "ok", "line 2 holds K2",
    ]  # fmt: skip
    assert run.completion[-1].text == "sent 1"
    assert run.tokens is None


def test_step_rewards_are_at_the_last_token_of_each_acting_turn(experience, tmp_path):
    rewritten_runs.step_rewards(experience, tmp_path / "out", None)
    (run,) = Table(tmp_path / "out").records()
    assert {place: float(run.token_level_reward[place]) for place in np.flatnonzero(run.token_level_reward)} == {
        7: 1.0, 17: -1.0,
    }  # fmt: skip


def test_a_peer_that_is_not_here_is_refused_with_what_it_needs(experience, tmp_path, monkeypatch):
    monkeypatch.delenv("NAT_PYTHON", raising=False)
    monkeypatch.delenv("NEMO_GYM_GUIDE", raising=False)
    config = load_config(EXAMPLE / "config.yaml", environment={})
    for function, name in ((rewritten_runs.nat_rows, "NAT_PYTHON"), (rewritten_runs.gym_rows, "NEMO_GYM_GUIDE")):
        with pytest.raises(ConfigError, match=name):
            function(experience, tmp_path / "out", config)
