"""Training by stored scores: the reward of runs, and the label noise of each pair."""

import msgspec

from pairwright import Pairs, Table
from pairwright.config import Config
from pairwright.config.sections import TokensConfig
from pairwright.pairs.pair_table import pairs_to_batch, write_pairs
from pairwright.store.score_log import ScoreLog, ScoreRow
from pairwright.training import train
from pairwright.training.data import load_policy_data
from training.made_runs import make_pairs, make_runs


def test_a_stored_score_is_the_reward_of_runs(model, tmp_path):
    runs = make_runs(tmp_path / "runs", 4)
    table = Table(runs, create=False)
    uids = [run.eid.uid for run in table]
    ScoreLog(table.path, "judge").append(
        [ScoreRow(uid, score=number / 10, hash="v") for number, uid in enumerate(uids)]
    )
    options = TokensConfig(tokenizer=str(model))
    data = load_policy_data(runs, tmp_path / "tokens", options, lambda done, total: None, score="judge")
    found = dict(zip(data.ids, data.rewards.tolist(), strict=True))
    assert {round(found[uid], 6) for uid in found} <= {number / 10 for number in range(len(uids))}
    assert len(found) == len(uids)


def test_pairs_with_a_noise_of_their_own_train_as_with_that_label_smoothing(model, tmp_path):
    plain = make_pairs(tmp_path / "plain", 8)
    noisy = [msgspec.structs.replace(pair, info={**pair.info, "label_noise": 0.25}) for pair in Pairs(plain)]
    write_pairs(tmp_path / "noisy", [pairs_to_batch(noisy)])
    weights = {}
    for name, smoothing in (("plain", 0.0), ("plain", 0.25), ("noisy", 0.0)):
        section = {"batch_size": 4, "threads": 1, "max_steps": 2, "dpo": {"label_smoothing": smoothing}}
        output = tmp_path / f"{name}-{smoothing}"
        train(Config.model_validate({"train": section}), model=model, pairs=tmp_path / name, output=output)
        weights[name, smoothing] = (output / "model" / "model.safetensors").read_bytes()
    assert weights["noisy", 0.0] == weights["plain", 0.25]
    assert weights["noisy", 0.0] != weights["plain", 0.0]
