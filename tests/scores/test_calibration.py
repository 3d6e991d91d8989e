"""Judges against labels: intervals that cover the truth, biases, the slope, what to label next; and pairs by it."""

import json

import numpy as np
import pytest
import torch

import pairwright as pw
from pairwright.errors import ConfigError, PairwrightError, TableError
from pairwright.losses.preference import PairLogps, PreferenceOptions, preference_loss
from pairwright.scores.agreement_intervals import (
    clustered_mean,
    cohen_kappa,
    length_slope,
    preference_slope,
    share,
)
from pairwright.scores.calibration import calibrate, read_labels
from pairwright.store.score_log import ScoreLog, ScoreRow, proposed_runs, read_slope

NUM_SIMULATIONS, NUM_LABELS = 200, 100
# 95% intervals: the share of 200 simulations that cover the truth lies here.
COVERED = (0.90, 0.98)


def coverage(simulate, truth, seed=0):
    generator = np.random.default_rng(seed)
    estimates = [simulate(generator) for _ in range(NUM_SIMULATIONS)]
    return sum(one.low <= truth <= one.high for one in estimates) / NUM_SIMULATIONS


def true_kappa(base, noise):
    said = base * (1 - noise) + (1 - base) * noise
    chance = said * base + (1 - said) * (1 - base)
    return (1 - noise - chance) / (1 - chance)


@pytest.mark.parametrize("base", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2, 0.3, 0.4])
def test_intervals_of_kappa_cover_the_truth(base, noise):
    def simulate(generator):
        labels = (generator.random(NUM_LABELS) < base).astype(np.int64)
        return cohen_kappa(np.where(generator.random(NUM_LABELS) < noise, 1 - labels, labels), labels)

    assert COVERED[0] <= coverage(simulate, true_kappa(base, noise)) <= COVERED[1]


def test_kappa_of_a_perfect_and_of_a_constant_judge():
    labels = np.arange(100) % 2
    perfect = cohen_kappa(labels, labels)
    assert perfect.value == 1
    assert perfect.low < 1 == perfect.high
    constant = cohen_kappa(np.ones(100, np.int64), labels)
    assert (constant.value, constant.low, constant.high) == (0.0, None, None)
    assert cohen_kappa(np.ones(9, np.int64), np.ones(9, np.int64)).value is None


@pytest.mark.parametrize("bias", [0.0, 0.2, 0.5])
def test_intervals_of_the_order_bias_cover_the_truth(bias):
    """A judge that, in a share `bias` of all questions, takes the side that is shown first; 4 comparisons a task."""

    def simulate(generator):
        better = generator.random(NUM_LABELS) < 0.5  # that `a` is the better one
        values = np.zeros(NUM_LABELS)
        for shown_first in (True, False):
            fooled = generator.random(NUM_LABELS) < bias
            values += np.where(fooled, 1.0, np.where(better == shown_first, 1.0, -1.0)) / 2
        return clustered_mean(values, np.arange(NUM_LABELS) // 4)

    if bias == 0:
        assert simulate(np.random.default_rng(0)).value == 0
    else:
        assert COVERED[0] <= coverage(simulate, bias) <= COVERED[1]


@pytest.mark.parametrize("bias", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_intervals_of_the_length_bias_cover_the_truth(bias, noise):
    def simulate(generator):
        labels = (generator.random(NUM_LABELS) < 0.6).astype(np.float64)
        logs = generator.normal(size=NUM_LABELS) + 0.5 * labels  # good answers are also longer
        standard = (logs - logs.mean()) / logs.std()
        scores = 0.3 + 0.4 * labels + bias * standard + generator.normal(scale=noise * (1 + labels), size=NUM_LABELS)
        return length_slope(scores, labels, np.expm1(logs - logs.min()))

    assert COVERED[0] <= coverage(simulate, bias) <= COVERED[1]


def test_intervals_of_agreement_cover_the_truth():
    assert COVERED[0] <= coverage(lambda generator: share(int(generator.binomial(100, 0.8)), 100), 0.8) <= COVERED[1]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 0.5])
def test_the_slope_says_how_often_the_higher_score_is_right(noise):
    generator = np.random.default_rng(0)
    differences = np.where(generator.random(2000) < noise, -1.0, 1.0)
    slope = preference_slope(differences, np.ones(2000))
    assert 1 / (1 + np.exp(-slope)) == pytest.approx(1 - noise, abs=0.02)
    assert preference_slope(-np.ones(100), np.ones(100)) == 0, "worse than chance says nothing"
    assert preference_slope(np.zeros(5), np.ones(5)) == 0


def make_table(folder, *, num_tasks=50, num_runs=4, noise=0.0, labelled=10, seed=0):
    """Runs of two kinds, a reward for one run in `labelled`, and a judge that is wrong in a share `noise`."""
    generator = np.random.default_rng(seed)
    runs, rows = [], []
    for task in range(num_tasks):
        for run in range(num_runs):
            is_good = run % 2
            number = task * num_runs + run
            runs.append(
                pw.Experience(
                    eid=pw.EID(task=f"t{task}", run=run, suffix=f"{task}-{run}"),
                    kind="single_turn",
                    prompt=[{"role": "user", "content": f"question {task}"}],
                    completion=[{"role": "assistant", "content": f"{'good' if is_good else 'bad'} {run} " + "x" * run}],
                    reward=float(is_good) if number % labelled == 0 or labelled == 1 else None,
                    info={"good": is_good},
                )
            )
            score = 1 - is_good if generator.random() < noise else is_good
            rows.append(ScoreRow(runs[-1].eid.uid, score=float(score), hash="v1"))
    with pw.Table(folder) as table:
        table.append(runs)
    ScoreLog(table.path, "judge").append(rows)
    return pw.Table(folder)


def test_a_report_from_recorded_thumbs(tmp_path):
    table = make_table(tmp_path / "t", noise=0.2, labelled=3)
    report = calibrate(table, "judge", read_labels(table, "reward"))
    found = report["criteria"]["score"]
    assert found["labels"] == 67
    assert found["kappa"]["low"] < true_kappa(0.5, 0.2) < found["kappa"]["high"]
    assert found["base_rate"] == pytest.approx(0.5, abs=0.05)
    assert len(report["next"]) == 50
    assert not set(report["next"]) & set(read_labels(table, "reward").ratings)
    assert proposed_runs(table.path) == report["next"]
    low, high = found["curve"]
    assert (low["to"], high["from"], low["labels"] + high["labels"]) == (0.0, 1.0, 67)
    assert low["good"]["value"] < 0.4 < 0.6 < high["good"]["value"]


def test_labels_of_people_from_files(tmp_path):
    table = make_table(tmp_path / "t", noise=0.1)
    uids = [run.eid.uid for run in table]
    ratings = tmp_path / "ratings.csv"
    quoted = [uid.replace('"', '""') for uid in uids]
    ratings.write_text("uid,rating\n" + "".join(f'"{uid}",{run % 2}\n' for run, uid in enumerate(quoted[:80])))
    assert calibrate(table, "judge", read_labels(table, str(ratings)))["criteria"]["score"]["labels"] == 80
    votes = tmp_path / "votes.csv"
    votes.write_text("chosen,rejected\n" + "".join(f'"{quoted[n + 1]}","{quoted[n]}"\n' for n in range(0, 120, 2)))
    found = calibrate(table, "judge", read_labels(table, str(votes)))["criteria"]["score"]
    assert (found["labels"], found["slope_from"]) == (60, "votes")
    assert found["agreement"]["low"] < 0.81 < found["agreement"]["high"]  # both sides right: 0.9²


def test_too_few_or_one_sided_labels_are_refused(tmp_path):
    table = make_table(tmp_path / "t", labelled=50)
    with pytest.raises(PairwrightError, match="4 runs have a score and a label in reward: at least 10"):
        calibrate(table, "judge", read_labels(table, "reward"))
    ScoreLog(table.path, "mute").append([ScoreRow(run.eid.uid, reason="no verdict", hash="v") for run in table])
    with pytest.raises(PairwrightError, match="no run has a score of mute"):
        calibrate(table, "mute", read_labels(table, "reward"))
    other = make_table(tmp_path / "u", labelled=2)
    with pytest.raises(PairwrightError, match="labels of both kinds"):
        calibrate(other, "judge", read_labels(other, "reward"))


def test_a_pair_is_dropped_weighted_or_noisy_by_its_probability(tmp_path):
    table = make_table(tmp_path / "t", noise=0.3, labelled=3)
    with pytest.raises(TableError, match="not calibrated"):
        table.pairs(tmp_path / "pairs", score="judge", reliability="weight")
    calibrate(table, "judge", read_labels(table, "reward"))
    slope, _ = read_slope(table.path, "judge")
    likely = 1 / (1 + np.exp(-slope))
    assert 0.6 < likely < 0.9
    plain = table.pairs(tmp_path / "plain", score="judge")
    weighted = table.pairs(tmp_path / "weighted", score="judge", reliability="weight")
    assert {pair.weight for pair in plain} == {1.0}
    assert [pair.weight for pair in weighted] == pytest.approx([2 * likely - 1] * len(plain))
    noisy = table.pairs(tmp_path / "noisy", score="judge", reliability="noise")
    assert [pair.info["label_noise"] for pair in noisy] == pytest.approx([1 - likely] * len(plain))
    funnel = json.loads((tmp_path / "noisy" / "funnel.json").read_text())
    assert funnel["reliability"]["mode"] == "noise"
    assert funnel["reliability"]["mean_probability"] == pytest.approx(likely)
    none = table.pairs(tmp_path / "none", score="judge", min_probability=0.95)
    assert len(none) == 0
    reasons = {drop["reason"]: drop["count"] for drop in none.funnel["stages"][-1]["drops"]}
    assert reasons["too unlikely that chosen is better, by the calibrated score"] == len(plain)
    with pytest.raises(ConfigError, match="needs a calibrated score"):
        table.pairs(tmp_path / "none", reliability="weight")
    ScoreLog(table.path, "judge").append([ScoreRow(run.eid.uid, score=1.0, hash="v2") for run in table])
    with pytest.raises(TableError, match="has changed since it was calibrated"):
        table.pairs(tmp_path / "none", score="judge", reliability="weight")


@pytest.mark.parametrize("name", ["sigmoid", "robust"])
def test_noise_of_each_pair_is_the_label_smoothing_of_that_pair(name):
    def logps(rows, noise=None):
        return PairLogps(
            chosen_B=torch.tensor([-1.0, -2.0, -3.0])[rows],
            rejected_B=torch.tensor([-2.0, -1.5, -9.0])[rows],
            num_chosen_B=torch.tensor([1, 1, 1])[rows],
            num_rejected_B=torch.tensor([1, 1, 1])[rows],
            ref_chosen_B=torch.zeros(len(rows)),
            ref_rejected_B=torch.zeros(len(rows)),
            noise_B=noise,
        )

    noise = torch.tensor([0.1, 0.3, float("nan")])
    together = preference_loss(name, logps([0, 1, 2], noise), PreferenceOptions(label_smoothing=0.2)).loss_B
    alone = [
        preference_loss(name, logps([row]), PreferenceOptions(label_smoothing=smoothing)).loss_B[0]
        for row, smoothing in enumerate((0.1, 0.3, 0.2))
    ]
    assert together.tolist() == pytest.approx([float(one) for one in alone])
    with pytest.raises(ConfigError, match="ipo has no label smoothing"):
        preference_loss("ipo", logps([0, 1, 2], noise), PreferenceOptions())
