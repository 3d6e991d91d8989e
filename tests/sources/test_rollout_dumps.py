"""Rollouts dumped by trainers: TRL's completions, and the rendered text of verl and SkyRL."""

import json
from pathlib import Path

import pytest
from mutations import survives

from pairwright import Message
from pairwright.sources import READERS
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options
from pairwright.sources.reading import detect, read_file

FIXTURES = Path(__file__).parent / "fixtures"


def read(path, **options):
    layout = detect(path)
    return layout.format, list(read_file(path, layout, Options(**options)))


def test_completions_that_trl_logs_are_candidates_of_one_task():
    name, (first, second, raw) = read(FIXTURES / "trl_completions.jsonl")
    assert name == "trl-completions"
    assert first.eid.tid == second.eid.tid != raw.eid.tid
    assert (first.prompt, first.completion) == ((Message("user", "Two and two?"),), (Message("assistant", "4"),))
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert (first.metrics, first.info) == ({"advantage": 0.7}, {"step": 3, "solution": "4"})


def test_rendered_text_of_trl_stays_raw_and_several_rewards_need_a_name():
    _, (*_, raw) = read(FIXTURES / "trl_completions.jsonl")
    assert raw.prompt == (Message("text", "<|user|>Two and three?<|assistant|>"),)
    assert raw.completion == (Message("text", "5", generated=True),)
    assert (raw.reward, raw.reward_components) == (None, {"accuracy_reward": 1.0, "format_reward": 0.5})
    _, (*_, raw) = read(FIXTURES / "trl_completions.jsonl", reward="format_reward")
    assert raw.reward == 0.5


def test_verl_dumps_are_raw_text_with_their_scores():
    name, (first, second) = read(FIXTURES / "verl.jsonl")
    assert (name, first.eid.tid) == ("verl", second.eid.tid)
    assert first.prompt == (Message("text", "user\nTwo and two?\nassistant\n"),)
    assert first.completion == (Message("text", "4", generated=True),)
    assert [(run.reward, run.reward_components["acc"]) for run in (first, second)] == [(1.0, True), (0.0, False)]
    assert first.info == {"gts": "4", "step": 7, "pred": "4"}


def test_skyrl_dumps_add_up_the_scores_of_tokens():
    name, (first, second) = read(FIXTURES / "skyrl.jsonl")
    assert (name, first.eid.tid) == ("skyrl", second.eid.tid)
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert (first.truncate_status, second.truncate_status) == (None, "response_truncated")
    assert first.completion == (Message("text", "4<|im_end|>", generated=True),)
    with pytest.raises(BadRecord, match="not a number"):
        list(READERS["skyrl"][0].read({"input_prompt": "a", "output_response": "b", "score": ["x"]}, None, Options()))


@pytest.mark.parametrize("name", ["trl_completions", "verl", "skyrl"])
def test_no_broken_row_raises_anything_else(name):
    row = json.loads((FIXTURES / f"{name}.jsonl").read_text().splitlines()[0])
    assert survives(READERS[name.replace("_", "-")][0], row) > 100


def test_the_dump_of_verl_reads(traces):
    name, runs = read(traces.parent / "repro" / "ux" / "verl_rollout_dump.jsonl")
    assert (name, len(runs), len({run.eid.tid for run in runs})) == ("verl", 3, 1)
    assert [run.reward for run in runs] == [1.0, 0.0, 0.2]
