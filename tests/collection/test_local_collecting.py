"""A local checkpoint as policy, and the command: config to table, pairs and files, on a real small model."""

import asyncio
import json
import sys

import pytest

from generate.tiny_models import byte_tokenizer, llama, save_model
from pairwright import Table
from pairwright.cli import main
from pairwright.collection import Ask, PolicyError, collect
from pairwright.collection.local_policy import LocalPolicy
from pairwright.collection.run_policy import make_policy
from pairwright.config import Config, PolicyConfig
from pairwright.errors import PairwrightError
from pairwright.generate import Engine
from pairwright.records.messages import Message
from serve.served_models import served

WORKFLOW = """
from pairwright.collection import step

async def play(task, policy):
    async with step(task["question"]) as s:
        for answer in await policy.complete(s.prompt, n=4, max_tokens=6):
            s.candidate(answer, score=answer.text.count("e") + len(answer.text) / 100)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "small")


def project(folder, model):
    (folder / "flow.py").write_text(WORKFLOW)
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps({"id": n, "question": f"the cat {n}"}) + "\n" for n in range(6))
    )
    (folder / "config.yaml").write_text(
        f"name: small\nseed: 3\npolicy: {{model: {model}, temperature: 0.9}}\n"
        "collect: {workflow: flow.py:play, dataset: tasks.jsonl, num_runs: 2}\n"
    )


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pairwright", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run


def test_the_command_collects_from_a_local_model_and_builds_pairs(tmp_path, model, command):
    (tmp_path / "project").mkdir()
    project(tmp_path / "project", model)
    code, out, told = command("collect", "project/config.yaml", "-o", "run", "--json")
    assert code == 0, told
    figures = json.loads(out)
    assert (figures["done"], figures["candidates"], figures["failed"]) == (12, 48, 0)
    assert "Next: pairwright pairs run/experience -o run/pairs" in told
    for record in Table(tmp_path / "run" / "experience").records():
        assert len(record.tokens) == record.prompt_length + len(record.logprobs)
        assert record.model_version == "small"
    code, _, told = command("collect", "project/config.yaml", "-o", "run")
    assert (code, "add --resume" in told) == (1, True)
    code, out, told = command("collect", "project/config.yaml", "-o", "run", "--resume", "--set", "collect.num_runs=3")
    assert code == 0, told
    assert "done_before\t12" in out
    code, _, told = command("pairs", "run/experience", "-o", "run/pairs", "--json")
    assert code == 0, told
    assert (tmp_path / "run" / "pairs" / "pairs.parquet").exists()


def test_a_collection_in_which_everything_fails_ends_with_exit_code_1(tmp_path, model, command):
    project(tmp_path, model)
    (tmp_path / "flow.py").write_text("async def play(task): raise ValueError('never works')")
    code, _, told = command("collect", "config.yaml", "-o", "run")
    assert code == 1
    assert "ValueError: never works (flow.py:1)" in told
    assert "all 12 runs failed" in told
    code, _, told = command("collect", "config.yaml", "-o", "other", "--set", "policy.model=nowhere")
    assert (code, "nowhere: no such folder" in told) == (1, True)
    assert command("collect", "config.yaml", "-o", "other", "--set", "policy.temperature=0.5")[0] == 1  # not "--resume"
    assert command("collect", "config.yaml", "-o", "x", "--set", "collect.num_runz=3")[0] == 3


def test_what_is_collected_does_not_depend_on_concurrency(tmp_path, model):
    project(tmp_path, model)
    engine = Engine.load(model)
    found = []
    for concurrency in (1, 12):
        config = Config.model_validate(
            {"seed": 3, "policy": {"temperature": 0.9}, "collect": {"workflow": "flow.py:play", "dataset": str(tmp_path / "tasks.jsonl"), "num_runs": 2, "max_concurrency": concurrency}}
        )  # fmt: skip
        collect(config, output=tmp_path / str(concurrency), policy=LocalPolicy(engine), base=tmp_path)
        records = Table(tmp_path / str(concurrency) / "experience").records()
        found.append({record.eid.uid: (record.tokens.tolist(), record.reward) for record in records})
    assert found[0] == found[1]
    assert len(found[0]) == 48


def test_a_model_behind_our_server_gives_what_it_gives_here(tmp_path, model):
    project(tmp_path, model)
    engine = Engine.load(model, name="tiny")
    found = []
    with served(engine) as server:
        remote = {"base_url": f"{server.url}/v1", "logprobs": True, "return_token_ids": True}
        for place, options in (("here", {}), ("there", remote)):
            config = Config.model_validate(
                {"seed": 3, "policy": {"model": "tiny", **options}, "collect": {"workflow": "flow.py:play", "dataset": "tasks.jsonl"}}
            )  # fmt: skip
            policy = None if options else LocalPolicy(engine)
            collect(config, output=tmp_path / place, policy=policy, base=tmp_path)
            records = Table(tmp_path / place / "experience").records()
            found.append({record.eid.uid: record for record in records})
    here, there = found
    assert here.keys() == there.keys()
    for uid, record in here.items():
        assert there[uid].tokens.tolist() == record.tokens.tolist()
        assert there[uid].logprobs.tolist() == pytest.approx(record.logprobs.tolist(), abs=1e-4)
        assert (there[uid].reward, there[uid].truncate_status) == (record.reward, record.truncate_status)


def test_calls_of_tools_are_read_from_what_the_model_wrote(monkeypatch):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("<call>", "<tool_call>")
    policy = LocalPolicy(Engine(llama(tokenizer), tokenizer))
    tools = ({"type": "function", "function": {"name": "clock", "parameters": {}}},)
    ask = Ask(messages=(Message("user", "time?"),), tools=tools)
    made = policy._message('Let me see.<tool_call>{"name": "clock", "arguments": {"city": "Rome"}}</tool_call>', ask)
    assert (made.content, made.tool_calls[0].name, made.tool_calls[0].arguments) == ("Let me see.", "clock", '{"city": "Rome"}')  # fmt: skip
    assert policy._message("just text", ask) == Message("assistant", "just text")
    asyncio.run(policy.close())


def test_tools_that_the_template_cannot_call_are_warned_of():
    tokenizer = byte_tokenizer()  # its template uses a different format for calls
    tools = ({"type": "function", "function": {"name": "clock", "parameters": {}}},)

    async def main(**options):
        policy = LocalPolicy(Engine(llama(tokenizer, context=512), tokenizer, **options))
        await policy.complete(Ask(messages=(Message("user", "time?"),), max_tokens=2))
        assert policy.warning == ""
        await policy.complete(Ask(messages=(Message("user", "time?"),), tools=tools, max_tokens=2))
        await policy.close()
        return policy.warning

    assert "policy.tools_as_text" in asyncio.run(main())
    assert asyncio.run(main(tools_as_text="hermes")) == ""


def test_a_prompt_that_does_not_fit_is_refused_not_retried():
    tokenizer = byte_tokenizer()
    policy = LocalPolicy(Engine(llama(tokenizer, context=16), tokenizer))

    async def main():
        with pytest.raises(PolicyError, match="the context of model has 16") as caught:
            await policy.complete(Ask(messages=(Message("user", "far too long for such a small context"),)))
        assert caught.value.kind == "refused"
        await policy.close()

    asyncio.run(main())


def test_a_relative_model_is_found_in_the_folder_of_the_configuration(tmp_path, monkeypatch):
    save_model(tmp_path / "project" / "models" / "base")
    monkeypatch.chdir(tmp_path)
    policy = make_policy(PolicyConfig(model="models/base"), base=tmp_path / "project")
    assert isinstance(policy, LocalPolicy)
    with pytest.raises(PairwrightError, match="models/base: no such folder"):
        make_policy(PolicyConfig(model="models/base"), base=tmp_path / "elsewhere")
