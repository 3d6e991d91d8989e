"""`pairwright doctor`: each requirement of a run, and the suggested fix if it is missing."""

import json
import shutil
import socket

import pytest
from typer.testing import CliRunner

from generate.tiny_models import byte_tokenizer, save_model
from jobs.customizer_peer import Peer, running
from jobs.made_pairs import pair, pair_with_tool_results, pairs_table
from pairwright import Experience, Message, Table, ToolCall
from pairwright.cli import app
from pairwright.config import Config
from pairwright.jobs import service_backend
from pairwright.jobs.doctor import diagnosis
from pairwright.jobs.doctor.memory import Shape, Size, generation_needs, model_size, needs
from serve.served_models import served, tiny_engine


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("doctor") / "model")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service_backend, "_PAUSES", (0.01, 0.01))


def found(config=None, *arguments):
    """Exit code and findings by name: (verdict, message, way out)."""
    with open("config.yaml", "w") as file:
        json.dump(config or {}, file)
    done = CliRunner().invoke(app, ["doctor", "config.yaml", "--json", *map(str, arguments)])
    assert done.exit_code in (0, 2), done.exception
    rows = {}
    for row in json.loads(done.stdout):
        rows.setdefault(row["name"], []).append((row["verdict"], row["message"], row["way_out"]))
    return done.exit_code, rows


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_run_that_has_what_it_needs_is_fine(tmp_path, model):
    (tmp_path / "traces.jsonl").write_text("{}\n")
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    (tmp_path / "play.py").write_text("async def play(task, policy, recorder): ...\n")
    config = {"sources": {"paths": ["traces.jsonl"]}, "collect": {"dataset": "tasks.jsonl", "workflow": "play.py:play"}}
    code, rows = found(config, "--pairs", pairs_table(tmp_path / "pairs"), "--model", model)
    assert code == 0, rows
    assert rows["sources"] == [("ok", "traces.jsonl: 1 file", "")]
    assert rows["tasks"] == [("ok", "2 tasks", "")]
    assert rows["workflow"][0][0] == rows["template"][0][0] == rows["memory"][0][0] == rows["disk"][0][0] == "ok"
    assert rows["pairs"][0][1].endswith("20 pairs of the right form")


@pytest.mark.parametrize(
    ("config", "arguments", "name", "words"),
    [
        ({"sources": {"paths": ["nothing/*.jsonl"]}}, (), "sources", "no file"),
        ({"collect": {"dataset": "nothing.jsonl"}}, (), "tasks", "nothing.jsonl"),
        ({"collect": {"num_tasks": 1, "workflow": "nothing.py:play"}}, (), "workflow", "nothing.py"),
        ({}, ("--pairs", "nothing"), "pairs", "no such file"),
        ({}, ("--model", "nothing"), "model", "no such folder"),
        ({"policy": {"model": "nothing"}}, (), "policy", "no such folder"),
        ({"backend": {"name": "trl", "trl": {"command": ["no-such-trl"]}}}, (), "programs", "no-such-trl"),
        ({"backend": {"name": "nemo-rl"}}, (), "programs", "uv"),
        ({"backend": {"name": "nemo-customizer"}}, (), "service", "entity_host: not set"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(config, arguments, name, words):
    code, rows = found(config, *arguments)
    assert code == 2
    assert any(verdict == "failed" and words in message for verdict, message, _ in rows[name]), rows


def test_a_model_without_weights_or_template_is_reported(tmp_path, model):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    code, rows = found({}, "--model", tmp_path / "bare")
    assert code == 2
    assert "no *.safetensors" in rows["model"][0][1]
    assert "tokenizer.json" in rows["template"][0][1]


def test_insufficient_memory_and_disk_are_reported(tmp_path, model, monkeypatch):
    monkeypatch.setattr(diagnosis, "memory_available", lambda: (10, "free in this test"))
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    code, rows = found({}, "--model", model)
    assert code == 2
    assert rows["memory"][0][0] == rows["disk"][0][0] == "failed"
    assert "lora" in rows["memory"][0][2]


def test_what_training_takes_is_counted_from_the_files(model):
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model)
    size = model_size(model)
    assert size.num_parameters == sum(tensor.numel() for tensor in loaded.state_dict().values())
    config = loaded.config
    assert (size.shape.hidden, size.shape.layers) == (config.hidden_size, config.num_hidden_layers)
    whole = Config().train
    adapter = whole.model_copy(update={"finetuning_type": "lora"})
    assert needs(Size(1000), whole).memory_bytes == 4000 * 4, "weights, gradients, two moments; no second model"
    assert needs(Size(1000), adapter).memory_bytes < 4000 * 1.1


def test_activations_and_caches_are_counted(tmp_path, model):
    # SmolLM2-135M: a training with 8 pairs of 228 tokens an update took 4.7 GB, not the 2.5 GB of weights and moments
    smollm = Size(134_515_008, Shape(hidden=576, intermediate=1536, layers=30, kv_size=192, vocabulary=49152))
    train = Config.model_validate({"train": {"precision": "bf16", "micro_batch_tokens": 8 * 228}}).train
    assert 4.5e9 < needs(smollm, train).memory_bytes < 5.5e9
    half = train.model_copy(update={"micro_batch_tokens": 4 * 228})
    assert needs(smollm, half).activations < 0.6 * needs(smollm, train).activations
    again = train.model_copy(update={"gradient_checkpointing": True})
    assert needs(smollm, again).activations < 0.2 * needs(smollm, train).activations
    policy = Config.model_validate({"policy": {"dtype": "bfloat16"}}).policy
    assert 3e9 < generation_needs(smollm, policy) < 4e9, "a cache of 131,072 tokens"
    (tmp_path / "play.py").write_text("async def play(task, policy, recorder): ...\n")
    code, rows = found({"collect": {"workflow": "play.py:play", "num_tasks": 1}}, "--model", model)
    assert code == 0
    training, collecting = (message for _, message, _ in rows["memory"])
    assert "for activations (train.micro_batch_tokens: 4,096)" in training
    assert "for weights and cache (policy.max_batch_tokens: 16,384)" in collecting


def test_activations_that_do_not_fit_are_a_warning_with_the_key_to_lower(model, monkeypatch):
    state = needs(model_size(model), Config().train).state
    monkeypatch.setattr(diagnosis, "memory_available", lambda: (state, "free in this test"))
    code, rows = found({}, "--model", model)
    assert (code, rows["memory"][0][0]) == (0, "warning")
    assert "lower train.micro_batch_tokens" in rows["memory"][0][1]


def test_an_endpoint_is_asked_for_its_model_and_with_its_token(monkeypatch):
    with served(tiny_engine(), token="secret") as place:
        policy = {"model": "tiny", "base_url": f"{place.url}/v1", "api_key_env": "DOCTOR_KEY"}
        code, rows = found({"policy": policy})
        assert (code, rows["policy"][0][2]) == (2, "export DOCTOR_KEY=...")
        monkeypatch.setenv("DOCTOR_KEY", "wrong")
        code, rows = found({"policy": policy})
        assert code == 2
        assert "the token was refused" in rows["policy"][0][1]
        assert "wrong" not in json.dumps(rows)
        monkeypatch.setenv("DOCTOR_KEY", "secret")
        assert found({"policy": policy})[0] == 0
        code, rows = found({"policy": {**policy, "model": "other"}})
        assert code == 2
        assert "has no 'other', but tiny" in rows["policy"][0][1]
    code, rows = found({"policy": {**policy, "base_url": f"http://127.0.0.1:{free_port()}/v1"}})
    assert code == 2
    assert "ConnectError" in rows["policy"][0][1]


def test_pairs_that_the_backend_cannot_hold_are_counted(tmp_path):
    table = pairs_table(tmp_path / "pairs", [pair_with_tool_results(task) for task in range(20)])
    code, rows = found({"backend": {"name": "nemo-rl"}}, "--pairs", table)
    assert code == 2
    assert "several_messages_a_side 20" in rows["dataset"][0][1]
    for name in ("local", "trl"):
        has_limits = found({"backend": {"name": name}}, "--pairs", table)[1].get("dataset")
        assert has_limits is None, "both train them as they are"


@pytest.mark.parametrize(("kind", "target"), [("dpo", "customizer"), ("sft", "customizer-sft")])
def test_pairs_are_checked_as_the_file_that_the_service_gets(tmp_path, kind, target):
    backend = {"name": "nemo-customizer", "nemo_customizer": {"hyperparameters": {"training_type": kind}}}
    _, rows = found({"backend": backend}, "--pairs", pairs_table(tmp_path / "pairs"))
    assert rows["dataset"][0][1].startswith(f"as {target}: ")


def test_a_service_is_asked_whether_it_answers_accepts_us_and_tunes_what_is_wanted():
    with running(Peer()) as peer:
        section = {"entity_host": peer.url, "customization_config": "meta/llama@1"}
        config = {"backend": {"name": "nemo-customizer", "nemo_customizer": section}}
        place = ("GET", "/v1/customization/configs")
        peer.script[place] = [{"data": [{"name": "llama@1", "namespace": "meta"}]}]
        code, rows = found(config)
        assert code == 0, rows
        assert [message for _, message, _ in rows["service"]][1] == "it tunes meta/llama@1"
        assert rows["data store"][0][0] == "ok"
        peer.script[place] = [{"data": [{"name": "meta/other"}]}]
        code, rows = found(config)
        assert code == 2
        assert "not among what it tunes: meta/other" in rows["service"][1][1]
        peer.script[place] = [401]
        code, rows = found(config)
        assert code == 2
        assert "hf_token" in rows["service"][0][2]
        peer.script[place] = [503] * 5
        assert found(config)[0] == 2


def test_for_people_it_is_a_table_with_the_way_out(tmp_path):
    (tmp_path / "c.yaml").write_text("sources: {paths: [nothing]}")
    done = CliRunner().invoke(app, ["doctor", "c.yaml"])
    assert done.exit_code == 2
    assert "correct sources.paths" in done.stdout
    assert "checks failed: sources" in done.stderr


def without_calls(model, folder):
    """The same model with a template that renders neither tools nor tool calls."""
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_calls_that_the_template_does_not_render_are_a_failure(tmp_path, model):
    bare = without_calls(model, tmp_path / "bare")
    table = pairs_table(tmp_path / "pairs", [pair(0), pair_with_tool_results(1)])
    code, rows = found({}, "--pairs", table, "--model", bare)
    ((verdict, message, way_out),) = rows["tokens"]
    assert (code, verdict) == (2, "failed")
    assert "1 of 2 records have tool calls, but the chat template renders none" in message
    assert "tokens.allow_dropped" in way_out
    code, rows = found({"tokens": {"allow_dropped": True}}, "--pairs", table, "--model", bare)
    assert (code, rows["tokens"][0][0]) == (0, "ok"), rows
    code, rows = found({}, "--pairs", table, "--model", model)
    assert (code, rows["tokens"][0][0]) == (0, "ok"), rows


def test_the_experience_of_the_run_and_the_files_to_import_are_looked_at_too(tmp_path, model, traces):
    bare = without_calls(model, tmp_path / "bare")
    call = Message("assistant", "", tool_calls=(ToolCall("look", "{}", "1"),))
    with Table(tmp_path / "run" / "experience") as table:
        table.append([Experience(kind="single_turn", prompt=[Message("user", "hi")], completion=[call])])
    code, rows = found({}, "--model", bare, "-o", tmp_path / "run")
    assert (code, "have tool calls" in rows["tokens"][0][1]) == (2, True)
    file = traces / "nemo_gym" / "xlam_fc__example_rollouts.jsonl"
    code, rows = found({"sources": {"paths": [str(file)]}}, "--model", bare)
    failed = [message for verdict, message, _ in rows["tokens"] if verdict == "failed"]
    assert (code, "5 refused as dropped" in failed[0]) == (2, True)


def test_a_prompt_that_is_not_rendered_whole_is_a_warning(tmp_path, model):
    bare = without_calls(model, tmp_path / "bare")
    tools = ({"type": "function", "function": {"name": "add"}},)
    table = pairs_table(tmp_path / "pairs", [pair(0, tools=tools)])
    code, rows = found({}, "--pairs", table, "--model", bare)
    assert (code, rows["tokens"][0][0]) == (0, "warning")
    assert "does not render parts of the prompt: tools in" in rows["tokens"][0][1]
