"""The output of `pairwright tokens` is trained without encoding again; inconsistent inputs are refused."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from flow.test_flow import write_gym_rollouts
from pairwright.cli.main import app
from pairwright.config import Config
from pairwright.errors import ConfigError, TableError
from pairwright.pairs.pair_table import pairs_to_batch, write_pairs
from pairwright.tokens.stage import stage
from pairwright.training import train
from training.made_runs import made_pair, make_failed_runs, make_model, make_runs

SETTINGS = ("train.batch_size=4", "train.max_steps=3", "train.threads=1")


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def train_words(model, output, channel, *words):
    channels = {name: float(name == channel) for name in ("dpo", "sft", "grpo")}
    settings = [*SETTINGS, *(f"train.channels.{name}={weight}" for name, weight in channels.items())]
    return ["train", "--model", model, "-o", output, *words, *(word for one in settings for word in ("--set", one))]


def encode(source, model, output, *words):
    command("tokens", source, "--tokenizer", model, "-o", output, *words)
    return output


@pytest.fixture
def no_encoding(monkeypatch):
    """Whoever encodes fails."""

    def fail(*_, **__):
        raise AssertionError("something was encoded")

    monkeypatch.setattr(stage, "encode_items", fail)
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # in this process, in which encoding fails


def config(channels=None, **tokens):
    return Config.model_validate({
        "train": {"batch_size": 4, "max_steps": 1, "threads": 1, "channels": channels or {"dpo": 1}}, "tokens": tokens,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("channel", "kind"), [("dpo", "pairs"), ("sft", "pairs"), ("sft", "experience"), ("grpo", "experience")]
)
def test_training_on_tokens_encodes_nothing_and_ends_with_the_same_weights(
    channel, kind, model, pairs, tmp_path, request
):
    source = pairs if kind == "pairs" else make_runs(tmp_path / "runs")
    command(*train_words(model, tmp_path / "whole", channel, f"--{kind}", source))
    tokens = encode(source, model, tmp_path / "tokens")
    request.getfixturevalue("no_encoding")
    with pytest.raises(AssertionError, match="something was encoded"):
        command(*train_words(model, tmp_path / "other", channel, f"--{kind}", source))
    command(*train_words(model, tmp_path / "ready", channel, "--tokens", tokens))  # the table is the manifest's
    named = train_words(model, tmp_path / "named", channel, "--tokens", tokens, f"--{kind}", source)
    command(*named)
    for name in ("ready", "named"):
        weights = [(tmp_path / run / "model/model.safetensors").read_bytes() for run in ("whole", name)]
        assert weights[0] == weights[1]
        assert not (tmp_path / name / "tokens").exists()
    counts = [json.loads((tmp_path / run / "train.json").read_text())["counts"] for run in ("whole", "ready")]
    assert counts[0] == counts[1]


def test_options_that_are_not_set_are_those_of_the_tokens_and_set_ones_have_to_agree(model, pairs, tmp_path):
    tokens = encode(pairs, model, tmp_path / "tokens", "--max-length", 40, "--truncation", "drop")
    train(config(), model=model, output=tmp_path / "run", tokens=tokens)
    assert json.loads((tmp_path / "run/train.json").read_text())["tokens"]["max_length"] == 40
    train(config(max_length=40), model=model, output=tmp_path / "same", tokens=tokens)
    with pytest.raises(ConfigError, match=r"tokens.max_length was 40, is 41.*restore them, or pairwright tokens"):
        train(config(max_length=41), model=model, output=tmp_path / "other", tokens=tokens)
    assert not (tmp_path / "other").exists()


def test_another_tokenizer_is_refused(model, pairs, tmp_path):
    tokens = encode(pairs, model, tmp_path / "tokens")
    other = make_model(tmp_path / "other")
    described = json.loads((other / "tokenizer_config.json").read_text())
    described["chat_template"] += "{# another #}"
    (other / "tokenizer_config.json").write_text(json.dumps(described))
    before = sorted(path.name for path in tokens.iterdir())
    with pytest.raises(ConfigError, match=r"another tokenizer or template than .*other's: pairwright tokens .* again"):
        train(config(), model=other, output=tmp_path / "run", tokens=tokens)
    assert [name for name in sorted(path.name for path in tokens.iterdir()) if "mapped" not in name] == before


def test_a_table_that_has_changed_or_is_another_is_refused(model, tmp_path):
    pairs = [made_pair(number) for number in range(8)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs[:6])])
    write_pairs(tmp_path / "more", [pairs_to_batch(pairs[1:])])
    tokens = encode(tmp_path / "pairs", model, tmp_path / "tokens")
    with pytest.raises(TableError, match="2 of its 7 items are not among them, 1 are of other items: pairwright tok"):
        train(config(), model=model, output=tmp_path / "run", pairs=tmp_path / "more", tokens=tokens)
    shutil.rmtree(tmp_path / "pairs")
    with pytest.raises(TableError, match="which was not found: name the table with --pairs DIR"):
        train(config(), model=model, output=tmp_path / "none", tokens=tokens)


def test_a_folder_without_sequences_and_sequences_that_no_channel_uses_are_refused(model, pairs, tmp_path):
    with pytest.raises(TableError, match=r"expected a folder of sequences .*make one with: pairwright tokens SOURCE"):
        train(config(), model=model, output=tmp_path / "run", tokens=tmp_path / "nowhere", pairs=pairs)
    assert not (tmp_path / "nowhere").exists()
    tokens = encode(pairs, model, tmp_path / "tokens")
    runs = make_runs(tmp_path / "runs")
    only_runs = config({"dpo": 0, "grpo": 1})
    with pytest.raises(ConfigError, match="has the sequences of pairs, but no channel with a weight trains on them"):
        train(only_runs, model=model, output=tmp_path / "run", experience=runs, tokens=tokens)


def test_runs_without_cached_tokens_are_encoded_with_a_note(model, pairs, tmp_path):
    tokens, runs = encode(pairs, model, tmp_path / "tokens"), make_failed_runs(tmp_path / "runs")
    notes = []
    train(
        config({"dpo": 1, "grpo": 1}), model=model, output=tmp_path / "run", experience=runs, tokens=tokens,
        progress=lambda event: notes.append(event.get("note")),
    )  # fmt: skip
    assert f"tokens: runs encoded: {tokens} has only pairs" in notes


def test_pairs_with_recorded_ids_are_trained_where_their_experience_table_is_not(model, tmp_path):
    write_gym_rollouts(tmp_path / "rollouts.jsonl", model)
    command("import", tmp_path / "rollouts.jsonl", "-o", tmp_path / "experience")
    command("pairs", tmp_path / "experience", "-o", tmp_path / "pairs")
    tokens = encode(tmp_path / "pairs", model, tmp_path / "tokens")
    assert json.loads((tokens / "manifest.json").read_text())["recorded"] > 0
    shutil.rmtree(tmp_path / "experience")
    with pytest.raises(TableError, match="its experience table was not found"):
        train(config(), model=model, output=tmp_path / "text", pairs=tmp_path / "pairs")
    train(config(), model=model, output=tmp_path / "run", tokens=tokens)
    assert (tmp_path / "run/model/model.safetensors").exists()
