"""Messages of a newcomer's first day: what is wrong, where, and the way out, before any work is done."""

import json

import pytest

from generate.tiny_models import save_model
from pairs.made_tables import candidate, made
from pairwright.cli import main
from pairwright.pairs import PairOptions, build_pairs
from pairwright.store.table import Table


def run(monkeypatch, capsys, *words):
    """Return the exit code of a command, and its stderr."""
    monkeypatch.setattr("sys.argv", ["pairwright", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr().err


@pytest.fixture
def tables(tmp_path):
    table = made(tmp_path / "experience", [candidate(0.9, "yes"), candidate(0.1, "no", run=1)])
    build_pairs([Table(table.path)], tmp_path / "pairs", PairOptions())
    build_pairs([Table(table.path)], tmp_path / "empty", PairOptions(min_gap=5))
    save_model(tmp_path / "model")
    return tmp_path


def test_an_experience_table_is_not_exported_but_paired_first(tables, monkeypatch, capsys):
    code, message = run(monkeypatch, capsys, "export", tables / "experience", "--to", "trl", "-o", tables / "x.jsonl")
    assert code == 1
    assert "an experience table" in message
    assert f"pairwright pairs {tables / 'experience'}" in message


def test_pairs_are_not_paired_again(tables, monkeypatch, capsys):
    code, message = run(monkeypatch, capsys, "pairs", tables / "pairs", "-o", tables / "again")
    assert code == 1
    assert "a pairs table" in message
    assert f"pairwright tokens {tables / 'pairs'}" in message


def test_a_tokenizer_may_be_named_by_its_file_and_one_that_is_not_there_is_no_folder(tables, monkeypatch, capsys):
    file = tables / "model" / "tokenizer.json"
    assert run(monkeypatch, capsys, "tokens", tables / "pairs", "--tokenizer", file, "-o", tables / "t")[0] == 0
    code, message = run(monkeypatch, capsys, "tokens", tables / "pairs", "--tokenizer", "nothere", "-o", tables / "u")
    assert code == 1
    assert "nothere: no such folder" in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--loss", "nope"), "--loss: got 'nope', expected one of sigmoid"),
        (("--loss", "grpo"), "grpo is a channel, not a preference loss: set train.channels.grpo=1"),
        (("--report-to", "nothing"), "expected 'tensorboard', 'wandb'"),
        (("--report-to", "wandb"), "wandb is not installed: pip install wandb"),
    ],
)
def test_losses_and_reporters_are_checked_before_any_work(tables, monkeypatch, capsys, words, expected):
    if words[1] == "wandb":
        monkeypatch.setattr("pairwright.training.metrics.find_spec", lambda name: None)
    model, run_folder = tables / "model", tables / "run"
    arguments = ("train", "--pairs", tables / "pairs", "--model", model, "-o", run_folder, *words)
    code, message = run(monkeypatch, capsys, *arguments)
    assert code
    assert expected in message
    assert not run_folder.exists()


def test_dpo_is_the_sigmoid_loss():
    from pairwright.config import load_config

    assert load_config(overrides=[("train.dpo.loss", "dpo")], environment={}).train.dpo.loss == "sigmoid"


def test_training_on_no_pairs_says_so(tables, monkeypatch, capsys):
    arguments = ("train", "--pairs", tables / "empty", "--model", tables / "model", "-o", tables / "run")
    code, message = run(monkeypatch, capsys, *arguments)
    assert code == 1
    assert "no pair to train on (the table is empty)" in message
    assert f"{tables / 'empty'}/funnel.json says why candidates were dropped" in message


def test_a_chat_template_can_be_named_and_is_saved_with_the_model(tables, monkeypatch, capsys):
    template = tables / "template.jinja"
    (tables / "model" / "chat_template.jinja").replace(template)
    tokens = ("tokens", tables / "pairs", "--tokenizer", tables / "model")
    code, message = run(monkeypatch, capsys, *tokens, "-o", tables / "without")
    assert code == 1
    assert "--chat-template FILE" in message
    assert run(monkeypatch, capsys, *tokens, "--chat-template", template, "-o", tables / "with")[0] == 0
    code, message = run(monkeypatch, capsys, *tokens, "--chat-template", "nothere.jinja", "-o", tables / "with")
    assert code == 1
    assert "nothere.jinja: no chat template: No such file" in message
    train = ("train", "--pairs", tables / "pairs", "--model", tables / "model", "-o", tables / "run")
    assert run(monkeypatch, capsys, *train, "--chat-template", template, "train.max_steps=1")[0] == 0
    saved = tables / "run" / "model" / "chat_template.jinja"
    assert saved.read_bytes() == template.read_bytes()


def test_another_chat_template_is_encoded_again(tables, monkeypatch, capsys):
    other = tables / "other.jinja"
    own = (tables / "model" / "chat_template.jinja").read_text(encoding="utf-8")
    other.write_text("Hi! " + own, encoding="utf-8")
    tokens = ("tokens", tables / "pairs", "--tokenizer", tables / "model", "-o", tables / "tokens", "--json")
    counts = []
    for words in ((), (), ("--chat-template", other)):
        monkeypatch.setattr("sys.argv", ["pairwright", *map(str, (*tokens, *words))])
        with pytest.raises(SystemExit):
            main()
        counts.append(json.loads(capsys.readouterr().out)["from_cache"])
    assert counts == [0, 1, 0]


@pytest.mark.parametrize("num_short", [0, 3])
def test_lint_says_which_balance_to_build_with_and_how_many_pairs_stay(tmp_path, num_short):
    """Where the chosen side is always the longer one, dropping pairs leaves none: it is not advised."""
    from pairwright.pairs.pair_stats import lint_pairs

    rows = []
    for task in range(12):
        texts = ["long " * (20 + task), "short"]
        best, worst = texts[::-1] if task < num_short else texts
        rows += [candidate(0.9, best, task=task), candidate(0.1, worst, task=task, run=1)]
    build_pairs([made(tmp_path / "experience", rows)], tmp_path / "pairs", PairOptions())
    (finding,) = [finding for finding in lint_pairs(tmp_path / "pairs") if finding.name == "length"]
    summary = build_pairs([Table(tmp_path / "experience")], tmp_path / "balanced", PairOptions(length_balance=0.5))
    if num_short:
        assert f"--length-balance 0.5, which keeps {summary['pairs']} of 12 pairs" in finding.message
        assert 0 < summary["pairs"] < 12
    else:
        assert summary["pairs"] == 0
        assert "dropping pairs would leave none" in finding.message
        assert "--length-balance" not in finding.message
