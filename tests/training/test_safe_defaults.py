"""Defaults of training: an SFT term per token, warnings without it, and monitoring of chosen sides."""

import json
from pathlib import Path

import pytest

from pairwright.config import Config
from pairwright.config.backend_config import NemoPlatformConfig
from pairwright.config.customizer_config import CustomizerHyperparameters, NemoCustomizerConfig
from pairwright.errors import PairwrightError
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
from pairwright.records.experience import EID, Experience, Pair
from pairwright.records.messages import Message
from pairwright.service.request_models import Dpo
from pairwright.store.table import Table
from pairwright.training import chosen_watch, read_status, train
from pairwright.training.chosen_watch import ChosenWatch
from training.made_runs import make_pairs, make_runs

LONG = "red green " * 120  # of a byte-level tokenizer: 1,200 trained tokens and a stop


def trained(model, output: Path, *, tokens=None, pairs=None, experience=None, **settings) -> list[dict]:
    base = {"batch_size": 4, "learning_rate": 1e-3, "threads": 1, "max_steps": 1, "epochs": 1000}
    config = Config.model_validate({"train": base | settings, "tokens": tokens or {}})
    train(config, model=model, output=output, pairs=pairs, experience=experience)
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def long_pairs(folder: Path) -> Path:
    pairs = []
    for task in range(2):
        prompt = (Message("user", f"say {task}"),)
        chosen, rejected = (Message("assistant", LONG + "yes"),), (Message("assistant", "no " + LONG),)
        eids = {f"{side}_eid": EID(batch=0, task=task, run=run) for run, side in enumerate(("chosen", "rejected"))}
        name = pair_id(prompt, (), chosen, rejected)
        pairs.append(Pair(id=name, prompt=prompt, chosen=chosen, rejected=rejected, chosen_reward=1.0, rejected_reward=0.0, gap=1.0, strategy="all", **eids))  # fmt: skip
    write_pairs(folder, [pairs_to_batch(pairs)])
    return folder


def long_runs(folder: Path) -> Path:
    with Table(folder) as table:
        table.append(
            Experience(
                eid=EID(batch=0, task=task, run=run), kind="single_turn", prompt=[Message("user", f"say {task}")],
                completion=[Message("assistant", LONG + ("yes" if run else "no"))], reward=float(run),
            )
            for task in range(2) for run in range(2)
        )  # fmt: skip
    return folder


def test_the_sft_term_of_long_chosen_sides_counts_per_token(model, tmp_path):
    pairs = long_pairs(tmp_path / "pairs")
    plain, anchored = (
        trained(model, tmp_path / name, pairs=pairs, dpo=options)[0]
        for name, options in (("plain", {"sft_loss_weight": 0}), ("default", {}))
    )
    likelihood = anchored["logps/chosen"] / 1204  # "yes", and the stop
    assert anchored["loss"] - plain["loss"] == pytest.approx(-likelihood, rel=1e-3)
    assert anchored["loss"] < 10  # summed over tokens, the term alone would be above 100


@pytest.mark.parametrize("channel", ["kto", "grpo"])
def test_the_sft_term_of_long_good_runs_counts_per_token(channel, model, tmp_path):
    runs = long_runs(tmp_path / "runs")
    channels = {"dpo": 0, channel: 1}
    plain, anchored = (
        trained(model, tmp_path / name, experience=runs, channels=channels, **{channel: options})[0]
        for name, options in (("plain", {"sft_loss_weight": 0}), ("anchored", {"sft_loss_weight": 0.1}))
    )
    difference = anchored["loss"] - plain["loss"]
    if channel == "grpo":
        assert difference == pytest.approx(0.1 * anchored["grpo/nll"], rel=1e-3)
        assert 0 < difference < 1
    else:  # the mean over all runs, half of which are desirable
        assert difference == pytest.approx(-0.1 * anchored["kto/logps_desirable"] / 1204 / 2, rel=1e-3)
        assert 0 < difference < 1


@pytest.mark.parametrize("channel", ["dpo", "kto", "grpo"])
def test_training_without_an_sft_term_has_to_be_asked_for_and_is_warned_of(channel, model, tmp_path):
    pairs, runs = make_pairs(tmp_path / "pairs", 4), make_runs(tmp_path / "runs")
    data = {"pairs": pairs} if channel == "dpo" else {"experience": runs}
    for name, options in (("anchored", {"sft_loss_weight": 1}), ("zero", {"sft_loss_weight": 0})):
        trained(model, tmp_path / name, channels={"dpo": 0, channel: 1}, **{channel: options}, **data)
        notes = read_status(tmp_path / name).notes
        assert any(f"warning: {channel}: no SFT term" in note for note in notes) == (name == "zero")


def test_kto_does_not_start_without_a_weight_of_its_sft_term(model, tmp_path):
    with pytest.raises(PairwrightError, match=r"train.kto.sft_loss_weight: not set.*set train.kto.sft_loss_weight=10"):
        trained(model, tmp_path / "run", experience=make_runs(tmp_path / "runs"), channels={"dpo": 0, "kto": 1})


def test_the_learning_rate_follows_the_number_of_trained_parameters_unless_it_is_set(model, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", 4)
    for rate, expected in ((None, 1e-3), (1e-5, 1e-5)):
        (row,) = trained(model, tmp_path / str(rate), pairs=pairs, learning_rate=rate)
        assert row["learning_rate"] == pytest.approx(expected)


def test_other_trainers_and_services_keep_their_own_zero():
    assert Config().train.dpo.sft_loss_weight == 1.0
    assert Config().train.dpo.foreign_sft_weight == 0.0
    assert Config.model_validate({"train": {"dpo": {"sft_loss_weight": 0.2}}}).train.dpo.foreign_sft_weight == 0.2
    assert CustomizerHyperparameters().dpo.sft_loss_weight == 0.0
    assert not NemoPlatformConfig().has_anchor
    assert Dpo().sft_loss_weight == 0.0
    assert not NemoCustomizerConfig().has_anchor
    assert NemoCustomizerConfig(hyperparameters={"dpo": {"sft_loss_weight": 0.1}}).has_anchor


def test_chosen_sides_that_fall_are_warned_of_once_and_stop_the_run_where_asked(model, tmp_path, monkeypatch):
    monkeypatch.setattr(chosen_watch, "LEAST_FALL", -1e9)  # any value is a fall
    pairs = make_pairs(tmp_path / "pairs", 16, held=4)
    settings = {"max_steps": 30, "val_check_interval": 5, "save_every": 100}
    for name, stops in (("warned", False), ("stopped", True)):
        trained(model, tmp_path / name, pairs=pairs, early_stop=stops, **settings)
        status = read_status(tmp_path / name)
        (warning,) = [note for note in status.notes if "only rejected sides give the margin" in note]
        assert "accuracy on held-out pairs" in warning
        assert status.step == (10 if stops else 30)
        assert status.state == "completed"
        assert (tmp_path / name / "model" / "model.safetensors").is_file()


def test_the_watch_tells_a_fall_from_a_rise():
    for chosen, rejected, warns in ((-2.0, -9.0, True), (0.5, -9.0, False), (-2.0, -1.0, False), (-0.5, -9.0, False)):
        watch = ChosenWatch(Config().train, 5e-6)
        values = {"rewards/chosen": 0.1 * chosen, "rewards/rejected": 0.1 * rejected, "rewards/margins": 0.1 * (chosen - rejected)}  # fmt: skip
        assert any(watch.add(values) for _ in range(20)) == warns
        assert watch.finish() is None


def test_margins_that_do_not_change_are_reported(model, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", 8)
    trained(model, tmp_path / "slow", pairs=pairs, learning_rate=1e-9, max_steps=12)
    assert any("margins did not move" in note for note in read_status(tmp_path / "slow").notes)
    # Before the first update the margin is 0.
    trained(model, tmp_path / "one", pairs=pairs, learning_rate=1e-9, max_steps=1)
    assert not any("margins did not move" in note for note in read_status(tmp_path / "one").notes)
    trained(model, tmp_path / "fast", pairs=pairs, max_steps=12)
    assert not any("margins did not move" in note for note in read_status(tmp_path / "fast").notes)


def test_a_small_beta_for_sides_of_a_few_tokens_is_warned_of(model, tmp_path):
    prompt, answers = (Message("user", "?"),), [(Message("assistant", text),) for text in ("a", "b")]
    eids = {"chosen_eid": EID(batch=0, task=0, run=0), "rejected_eid": EID(batch=0, task=0, run=1)}
    pair = Pair(id=pair_id(prompt, (), *answers), prompt=prompt, chosen=answers[0], rejected=answers[1], chosen_reward=1.0, rejected_reward=0.0, gap=1.0, strategy="all", **eids)  # fmt: skip
    write_pairs(tmp_path / "pairs", [pairs_to_batch([pair])])
    for name, options in (("default", {}), ("set", {"beta": 0.1})):
        trained(model, tmp_path / name, pairs=tmp_path / "pairs", dpo=options)
        notes = read_status(tmp_path / name).notes
        assert any("sides have 2 trained tokens (median)" in note for note in notes) == (name == "default")


def test_credit_turns_values_into_token_weights(model, tmp_path):
    turns = [("one", 2.0), ("two", -1.0), ("three", None)]
    completion = []
    for text, value in turns:
        extra = {} if value is None else {"turn_reward": value}
        completion += [Message("assistant", text, extra=extra), Message("user", "go")]
    with Table(tmp_path / "runs") as table:
        table.append([Experience(eid=EID(batch=0, task=0), kind="multi_turn", prompt=[Message("user", "?")], completion=completion[:-1], reward=1.0)])  # fmt: skip
    data = {"experience": tmp_path / "runs", "channels": {"dpo": 0, "sft": 1}, "dump_batches": 1}
    trained(model, tmp_path / "weighted", credit="value", **data)
    (item,) = json.loads((tmp_path / "weighted/batches/step-00000000.json").read_text())["channels"]["sft"]
    (mask,), (weights,) = item["masks"], item["weights"]
    own = [weight for weight, is_trained in zip(weights, mask, strict=True) if is_trained]
    # Letters of each word, and its stop.
    assert own == [2.0] * 4 + [0.0] * 4 + [1.0] * 6
    trained(model, tmp_path / "plain", **data)
    (item,) = json.loads((tmp_path / "plain/batches/step-00000000.json").read_text())["channels"]["sft"]
    assert item.get("weights") in (None, [None])
    with pytest.raises(PairwrightError, match="no trained turn has a value"):
        trained(model, tmp_path / "none", experience=make_runs(tmp_path / "no", 1, 1), channels=data["channels"], credit="value", tokens={"credit": {"sources": ("errors",)}})  # fmt: skip


def test_turns_before_a_compared_decision_are_anchored_once_for_each_prompt(model, tmp_path):
    history = [Message("user", "?"), Message("assistant", "look"), Message("tool", "one"), Message("assistant", "act"), Message("tool", "two")]  # fmt: skip
    pairs = []
    for number, bad in enumerate(("no", "go")):
        sides = (Message("assistant", "yes"),), (Message("assistant", bad),)
        eids = {"chosen_eid": EID(batch=0, task=0, run=0), "rejected_eid": EID(batch=0, task=0, run=1 + number)}
        name = pair_id(history, (), *sides)
        pairs.append(Pair(id=name, prompt=tuple(history), chosen=sides[0], rejected=sides[1], chosen_reward=1.0, rejected_reward=0.0, gap=1.0, strategy="all", **eids))  # fmt: skip
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs)])
    for name, weight in (("anchored", 0.1), ("plain", 0.0)):
        rows = trained(model, tmp_path / name, pairs=tmp_path / "pairs", dpo={"anchor_weight": weight}, dump_batches=1)
        channels = json.loads((tmp_path / name / "batches/step-00000000.json").read_text())["channels"]
        assert set(channels) == ({"dpo", "anchor"} if weight else {"dpo"})
        if not weight:
            plain = rows[0]["loss"]
            continue
        (item,) = channels["anchor"]
        # "look" and "act", each with its stop: the results of tools are context.
        assert sum(item["masks"][0]) == 5 + 4
        anchored = rows[0]
    assert anchored["loss"] - plain == pytest.approx(0.1 * anchored["anchor/nll"], rel=1e-3)
    # If no prompt has a generated turn, there is nothing to hold, and a note says so.
    trained(model, tmp_path / "none", pairs=make_pairs(tmp_path / "first", 4), dpo={"anchor_weight": 0.1})
    assert any("there is no anchor" in note for note in read_status(tmp_path / "none").notes)
