"""What the policy sampled is what is recorded: ids, masks, log-probabilities, tools and finish reasons of trajectories."""

import json
import sys

import numpy as np
import pytest
import torch

from collection.upstream import serving
from generate.tiny_models import byte_tokenizer, llama
from pairwright import Table
from pairwright.cli import main
from pairwright.collection import Ask, Completion, Recorder, Task, collect
from pairwright.collection.local_policy import LocalPolicy
from pairwright.collection.proxy.proxy import Proxy
from pairwright.config import Config
from pairwright.generate import Engine
from pairwright.records.messages import Message, ToolCall
from serve.served_models import served

TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
CALL = Message("assistant", None, tool_calls=(ToolCall("clock", "{}", "1"),))
TOOL = Message("tool", "noon", tool_call_id="1")
DONE = Message("assistant", "It is noon.")


def answer(message, prompt, ids, **more):
    logprobs = [-0.5] * len(ids)
    return Completion(message=message, prompt_ids=prompt, token_ids=ids, logprobs=logprobs, **more)


def recorder():
    emitted = []
    return Recorder(Task("t"), lambda prompt_hash, items: emitted.extend(items)), emitted


def called(made, messages, completion, tools=TOOLS):
    made.calls.add(Ask(messages=tuple(messages), tools=tuple(tools)), [completion])


def two_turns(made, *, second=(1, 2, 3, 4, 9, 9), tools=(TOOLS, TOOLS), first_end="tool_calls", last_end="stop"):
    user = Message("user", "time?")
    called(made, [user], answer(CALL, [1, 2], [3, 4], finish_reason=first_end), tools[0])
    called(made, [user, CALL, TOOL], answer(DONE, list(second), [5, 6, 7], finish_reason=last_end), tools[1])


def test_the_ids_of_a_trajectory_are_one_sequence_with_tool_results_masked_out():
    made, emitted = recorder()
    two_turns(made)
    made.trajectory("time?", [CALL, TOOL, DONE], reward=1)
    (record,) = emitted
    assert record.tokens.tolist() == [1, 2, 3, 4, 9, 9, 5, 6, 7]
    assert record.prompt_length == 2
    assert record.action_mask.tolist() == [True, True, False, False, True, True, True]
    assert record.logprobs.tolist() == [-0.5, -0.5, 0.0, 0.0, -0.5, -0.5, -0.5]
    assert record.tools == tuple(TOOLS)
    assert record.info == {"candidate": 0, "finish_reasons": ["tool_calls", "stop"]}
    assert record.truncate_status is None


def test_messages_written_as_dicts_are_recognised_by_what_they_say():
    made, emitted = recorder()
    two_turns(made)
    call = {"id": "other", "type": "function", "function": {"name": "clock", "arguments": "{ }"}}
    written = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "other"},
        {"role": "assistant", "content": "It is noon."},
    ]
    made.trajectory({"role": "user", "content": "time?"}, written, reward=1)
    assert emitted[0].tokens.tolist() == [1, 2, 3, 4, 9, 9, 5, 6, 7]


def test_a_history_that_was_rewritten_gives_no_ids_and_says_so():
    made, emitted = recorder()
    two_turns(made, second=(1, 2, 3, 8, 9, 9))
    made.trajectory("time?", [CALL, TOOL, DONE], reward=1)
    (record,) = emitted
    assert (record.tokens, record.info["without_ids"]) == (None, "history_differs")
    assert record.tools == tuple(TOOLS)


def test_a_turn_that_the_workflow_wrote_gives_no_ids_and_says_so():
    made, emitted = recorder()
    two_turns(made)
    made.trajectory("time?", [CALL, TOOL, Message("assistant", "Noon, I think.")], reward=1)
    assert (emitted[0].tokens, emitted[0].info["without_ids"]) == (None, "not_sampled")
    assert emitted[0].info["finish_reasons"] == ["tool_calls", None]


@pytest.mark.parametrize("ends", [("length", "stop"), ("stop", "length")])
def test_a_trajectory_with_a_turn_that_was_cut_is_truncated(ends):
    made, emitted = recorder()
    two_turns(made, first_end=ends[0], last_end=ends[1])
    made.trajectory("time?", [CALL, TOOL, DONE], reward=1)
    assert (emitted[0].truncate_status, emitted[0].info["finish_reasons"]) == ("response_truncated", list(ends))


def test_turns_asked_with_different_tools_keep_those_of_the_first_and_say_so():
    made, emitted = recorder()
    two_turns(made, tools=(TOOLS, []), second=(1, 3, 4, 9, 9))
    made.trajectory("time?", [CALL, TOOL, DONE], reward=1)
    (record,) = emitted
    assert record.tools == tuple(TOOLS)
    assert (record.tokens, record.info["without_ids"], record.info["has_other_tools"]) == (None, "tools_differ", True)


def test_tools_that_are_named_count_before_those_that_were_asked_with():
    made, emitted = recorder()
    two_turns(made)
    made.trajectory("time?", [CALL, TOOL, DONE], reward=1, tools=[])
    assert (emitted[0].tools, len(emitted[0].tokens)) == ((), 9)


def test_equal_messages_are_taken_in_order_and_by_their_prompt():
    made, emitted = recorder()
    yes, user, more = Message("assistant", "yes"), Message("user", "sure?"), Message("user", "really?")
    first, second = answer(yes, [1], [2, 3]), answer(Message("assistant", "yes"), [1, 2, 3, 4], [5, 3])
    called(made, [user], first, [])
    called(made, [user, yes, more], second, [])
    made.trajectory("sure?", [{"role": "assistant", "content": "yes"}, more, {"role": "assistant", "content": "yes"}], reward=1)  # fmt: skip
    assert emitted[0].tokens.tolist() == [1, 2, 3, 4, 5, 3]
    assert emitted[0].action_mask.tolist() == [True, True, False, True, True]


def test_two_equal_answers_to_one_question_keep_their_own_ids():
    made, emitted = recorder()
    ask = Ask(messages=(Message("user", "q"),), n=2)
    both = [answer(Message("assistant", "ab"), [1], ids) for ids in ([2, 3], [4])]
    made.calls.add(ask, both)
    with made.step("q") as s:
        s.candidate("ab", score=1)
        s.candidate("ab", score=0)
    assert [record.tokens.tolist() for record in emitted] == [[1, 2, 3], [1, 4]]


def test_text_that_was_sampled_at_another_prompt_does_not_lend_its_ids():
    made, emitted = recorder()
    called(made, [Message("user", "are you sure?")], answer(Message("assistant", "yes"), [1], [2]))
    with made.step("is it right?") as s:
        s.candidate("yes", score=1)
    assert (emitted[0].tokens, emitted[0].info["without_ids"], emitted[0].tools) == (None, "not_sampled", ())


def test_steps_and_events_have_the_tools_that_the_policy_was_asked_with():
    made, emitted = recorder()
    first = answer(CALL, [1], [2])
    called(made, [Message("user", "time?")], first)
    with made.step("time?") as s:
        s.candidate(first, score=1)
        assert s.tools == tuple(TOOLS)
    made.start("turn", "time?")
    made.end("turn", CALL, score=1)
    made.end("other", first, prompt="time?", score=1)
    assert [record.tools for record in emitted] == [tuple(TOOLS)] * 3
    assert [record.tokens.tolist() for record in emitted] == [[1, 2]] * 3


def test_candidates_asked_with_different_tools_are_not_comparable():
    keys = []
    made = Recorder(Task("t"), lambda prompt_hash, items: keys.append((prompt_hash, len(items))))
    with_tools, without = answer(CALL, [1, 8], [2]), answer(DONE, [1], [3])
    called(made, [Message("user", "q")], with_tools)
    called(made, [Message("user", "q")], without, [])
    with made.step("q") as s:
        s.candidate(with_tools, score=1)
        s.candidate(without, score=0)
    assert [count for _, count in keys] == [1, 1]
    assert keys[0][0] != keys[1][0]


# With real models: the workflow below asks three times, with the answers and tool results so far, and records it whole.

WORKFLOW = """
TOOLS = {tools!r}

async def play(task, policy, recorder):
    prompt = [{{"role": "user", "content": f"task {{task.id}}"}}]
    messages = []
    for turn in range(3):
        (answer,) = await policy.complete([*prompt, *messages], n=1, tools=TOOLS, max_tokens=5)
        messages.append(answer.message)
        if turn < 2:
            messages.append({{"role": "tool", "content": f"result {{turn}}", "tool_call_id": "x"}})
    recorder.trajectory(prompt, messages, reward=1.0)

async def silent(task, policy, recorder):
    await policy.complete(f"task {{task.id}}", n=1, max_tokens=2)
"""


class Notes:
    """A policy that notes everything it was asked and returned."""

    def __init__(self, policy):
        self.policy, self.name, self.drawn = policy, policy.name, []

    async def complete(self, ask):
        answers = await self.policy.complete(ask)
        self.drawn += answers
        return answers

    async def close(self):
        await self.policy.close()


@pytest.fixture(scope="module")
def engine():
    """A model that writes a few letters, which encode to the ids that they were drawn as."""
    tokenizer = byte_tokenizer()
    model = llama(tokenizer, context=512)
    allowed = torch.zeros(len(tokenizer), dtype=torch.bool)
    allowed[[tokenizer.convert_tokens_to_ids(token) for token in ("<|end|>", *"bfijkpquvwxyz")]] = True
    model.lm_head.register_forward_hook(lambda module, given, logits: logits.masked_fill(~allowed, -1e4))
    return Engine(model, tokenizer, name="tiny")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(WORKFLOW.format(tools=TOOLS))
    return tmp_path


def settings(**policy):
    tree = {"seed": 3, "policy": {"model": "tiny", **policy}, "collect": {"workflow": "flow.py:play", "num_tasks": 8}}
    return Config.model_validate(tree)


def check_against_draws(folder, drawn):
    """Check that each trajectory has exactly the sampled ids of its turns, in order, or the reason why it has none."""
    spans = {tuple(completion.token_ids) for completion in drawn}
    num_whole = 0
    for record in Table(folder / "experience", create=False).records():
        assert record.tools == tuple(TOOLS)
        assert len(record.info["finish_reasons"]) == 3
        if record.tokens is None:
            assert record.info["without_ids"] == "history_differs"
            continue
        num_whole += 1
        response = record.tokens[record.prompt_length :]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], record.action_mask.astype(int), [0]]))).reshape(-1, 2)
        sampled = [tuple(response[start:stop].tolist()) for start, stop in edges]
        assert len(sampled) == 3
        assert set(sampled) <= spans
        assert record.logprobs[~record.action_mask].tolist() == [0.0] * int((~record.action_mask).sum())
        is_cut = "length" in record.info["finish_reasons"]
        assert record.truncate_status == ("response_truncated" if is_cut else None)
    return num_whole


def test_trajectories_of_a_local_model_keep_the_ids_that_it_drew(project, engine):
    policy = Notes(LocalPolicy(engine))
    collected = collect(settings(), output=project / "run", policy=policy, base=project)
    assert check_against_draws(project / "run", policy.drawn) == 8
    assert not collected.status.without_ids


def test_answers_whose_text_encodes_to_other_ids_are_counted_in_the_ledger_and_on_resume(project):
    tokenizer = byte_tokenizer()
    policy = Notes(LocalPolicy(Engine(llama(tokenizer, context=512), tokenizer)))  # writes invalid text
    collected = collect(settings(), output=project / "run", policy=policy, base=project)
    assert check_against_draws(project / "run", policy.drawn) == 0
    lines = (project / "run" / "collection" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["without_ids"] for line in lines] == [{"history_differs": 1}] * 8
    again = collect(settings(), output=project / "run", policy=policy, base=project, resume=True)
    assert again.status.without_ids == collected.status.without_ids == {"history_differs": 8}


def test_an_answer_cut_by_max_tokens_has_no_stop_token_in_its_ids(project, engine):
    policy = Notes(LocalPolicy(engine))
    collect(settings(), output=project / "run", policy=policy, base=project)
    cut = [completion for completion in policy.drawn if completion.finish_reason == "length"]
    assert cut
    assert all(len(completion.token_ids) == 5 for completion in cut)
    assert not any(engine.stop_ids & set(completion.token_ids) for completion in cut)


def test_trajectories_of_an_endpoint_that_returns_ids_are_those_of_the_model_here(project, engine):
    policy = Notes(LocalPolicy(engine))
    collect(settings(), output=project / "here", policy=policy, base=project)
    with served(engine) as server:
        config = settings(base_url=f"{server.url}/v1", logprobs=True, return_token_ids=True)
        collect(config, output=project / "there", base=project)
    here, there = (
        sorted(Table(project / name / "experience", create=False).records(), key=lambda record: record.eid.task)
        for name in ("here", "there")
    )
    assert check_against_draws(project / "there", policy.drawn) > 0
    for one, other in zip(here, there, strict=True):
        assert (one.tokens is None) == (other.tokens is None)
        if one.tokens is not None:
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.action_mask.tolist() == other.action_mask.tolist()
            assert one.logprobs.tolist() == pytest.approx(other.logprobs.tolist(), abs=1e-4)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_proxy_records_what_our_server_returns(tmp_path, engine, is_streamed):
    import openai

    proxy = Proxy("http://127.0.0.1:9", tmp_path / "experience")
    with served(engine) as server:
        proxy.upstream = f"{server.url}/v1"
        with serving(proxy.app()) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
            answered = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, max_tokens=4, seed=5, logprobs=True,
                stream=is_streamed, extra_body={"return_token_ids": True},
            )  # fmt: skip
            if is_streamed:
                pieces = list(answered)
                prompt = next(piece.prompt_token_ids for piece in pieces)
                ids = [number for piece in pieces for choice in piece.choices for number in getattr(choice, "token_ids", None) or []]  # fmt: skip
            else:
                prompt, ids = answered.prompt_token_ids, answered.choices[0].token_ids
    (record,) = Table(tmp_path / "experience", create=False).records()
    assert record.tokens.tolist() == prompt + ids
    assert (record.prompt_length, len(record.logprobs)) == (len(prompt), len(ids))
    assert record.tools == tuple(TOOLS)
    assert record.info["finish_reason"] in ("length", "stop")
    assert record.truncate_status == ("response_truncated" if record.info["finish_reason"] == "length" else None)


def run_command(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["pairwright", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return (ended.value.code, *capsys.readouterr())


def write_project(folder, engine, workflow):
    model = folder / "model"
    engine.model.save_pretrained(model)
    engine.tokenizer.save_pretrained(model)
    (folder / "config.yaml").write_text(
        f"seed: 3\npolicy: {{model: {model}}}\ncollect: {{workflow: 'flow.py:{workflow}', num_tasks: 8}}\n"
        "evaluate: {workflow: 'flow.py:play', num_tasks: 2}\n"
    )


def test_the_command_says_how_many_trajectories_have_no_ids_and_why(project, engine, monkeypatch, capsys):
    write_project(project, engine, "play")
    code, out, told = run_command(monkeypatch, capsys, "collect", "config.yaml", "-o", "run", "--json")
    assert code == 0, told
    missing = json.loads(out)["without_token_ids"]
    records = list(Table(project / "run" / "experience", create=False).records())
    assert sum(missing.values()) == sum(record.tokens is None for record in records)
    for reason, count in missing.items():
        assert f"{count} of 8 candidates without token ids: {reason}, " in told


@pytest.mark.parametrize("command", ["collect", "run"])
def test_a_workflow_that_records_nothing_ends_with_exit_code_1(project, engine, monkeypatch, capsys, command):
    write_project(project, engine, "silent")
    code, _, told = run_command(monkeypatch, capsys, command, "config.yaml", "--output", "run")
    assert code == 1, told
    assert "8 runs are done and recorded nothing" in told.splitlines()[-1]
    assert "recorder.trajectory" in told.splitlines()[-1]


def test_template_variables_of_the_requests_are_recorded():
    made, emitted = recorder()
    ask = Ask(messages=(Message("user", "q"),), chat_template_kwargs={"enable_thinking": False})
    made.calls.add(ask, [completion := answer(DONE, [1, 2], [3])])
    made.trajectory("q", completion, reward=1)
    assert emitted[0].info["chat_template_kwargs"] == {"enable_thinking": False}
    assert ask.key() != Ask(messages=ask.messages).key()
    # Turns with different variables: no one render is theirs, and the tokens stage says so.
    made, emitted = recorder()
    user = Message("user", "time?")
    for messages, message, variables in (([user], CALL, {"a": 1}), ([user, CALL, TOOL], DONE, {})):
        made.calls.add(Ask(messages=tuple(messages), chat_template_kwargs=variables), [Completion(message=message)])
    made.trajectory("time?", [CALL, TOOL, DONE], reward=1)
    assert emitted[0].info["chat_template_kwargs"] == [{"a": 1}, {}]
