"""Calibration of a scorer: its scores against labels of people, and which runs to label next.

    DIR/scores/NAME.calibration.json    the report, which `pairs` reads to weigh pairs

Labels are ratings of runs (a CSV of `view`, thumbs and assessments that were imported as rewards) or votes on two runs.
A rating or score counts as good from a threshold on; agreement and kappa compare the classes good and not good. The
slope gives the probability that the side with the higher score is the better one: P = 1 / (1 + exp(-slope · gap)).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pairwright.errors import PairwrightError
from pairwright.pairs.candidates.candidates import read_candidate_rows
from pairwright.pairs.strategies.votes import Votes, read_votes
from pairwright.paths import write_json
from pairwright.records.json_text import from_json
from pairwright.scores.agreement_intervals import (
    CONFIDENCE,
    Floats,
    Ints,
    clustered_mean,
    cohen_kappa,
    length_slope,
    preference_slope,
    share,
)
from pairwright.scores.judge_answers import read_comparisons
from pairwright.store.score_log import OVERALL, ScoreLog, calibration_path, read_score_log
from pairwright.store.table import Table

NUM_NEXT = 50
_MIN_LABELS = 10
_MIN_PAIRS = 30  # from this number of pairs of one prompt on, the slope ignores pairs of different prompts
_MAX_PAIRS = 200_000
_MAX_BINS = 10


@dataclass(frozen=True)
class Labels:
    """Labels of people: ratings by run id, or votes as (better id, worse id) and ties."""

    source: str
    ratings: dict[str, float]
    wins: list[tuple[str, str]]
    ties: list[tuple[str, str]]


def read_labels(table: Table, source: str) -> Labels:
    """Read labels from a table: "reward" or the name of a reward component; or from a CSV file of votes or ratings."""
    if source.endswith(".csv"):
        votes: Votes = read_votes(Path(source), read_candidate_rows([Table(table.path, create=False)]))
        if votes.ratings is not None:
            return Labels(source, votes.ratings, [], [])
        wins = [sides for sides, count in votes.wins.items() for _ in range(count)]
        return Labels(source, {}, wins, [sides for sides, count in votes.ties.items() for _ in range(count)])
    frame = table.with_score(None).lazy().select("uid", "reward", "reward_components").collect()
    if source == "reward":
        ratings = dict(frame.select("uid", "reward").drop_nulls().iter_rows())
    else:
        parts = {
            uid: from_json(text).get(source)
            for uid, text in frame.select("uid", "reward_components").drop_nulls().iter_rows()
        }
        ratings = {uid: float(part) for uid, part in parts.items() if isinstance(part, int | float)}
    return Labels(source, ratings, [], [])


def calibrate(
    table: Table,
    name: str,
    labels: Labels,
    *,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Compare the scores of a scorer with labels of people; writes and returns the report.

    A rating is good from `threshold` on, by default halfway between the lowest and the highest. The report has for each
    criterion agreement, kappa, base rates, length bias, the reliability curve and the slope; the order bias of a judge
    that compares two runs; and which runs to label next.
    """
    frame = read_score_log(table.path, name)
    if not frame.height:
        raise PairwrightError(f"{table.path}: no run has a score of {name}: all attempts failed")
    narrow = ["uid", "tid", "prompt_hash", "num_completion_characters"]
    rows = table.lazy().select(narrow).collect().unique("uid", keep="first", maintain_order=True)
    criteria = {}
    for criterion in sorted(frame["criterion"].unique(), key=lambda one: (one != OVERALL, one)):
        scores = frame.filter(pl.col("criterion") == criterion).select("uid", "score")
        known = rows.join(scores, on="uid", how="inner", maintain_order="left")
        criteria[criterion] = (
            _against_votes(known, labels) if labels.wins else _against_ratings(known, labels, threshold)
        )
    overall = rows.join(frame.filter(pl.col("criterion") == OVERALL).select("uid", "score"), on="uid")
    report = {
        "scorer": name,
        "hash": frame["hash"].last(),
        "labels": labels.source,
        "confidence": CONFIDENCE,
        "criteria": criteria,
        **_order_bias(table, name, rows),
        "next": _label_next(overall, labels, criteria.get(OVERALL, {}).get("curve", [])),
    }
    write_json(calibration_path(table.path, name), report, error=PairwrightError)
    return report


def _against_ratings(known: pl.DataFrame, labels: Labels, threshold: float | None) -> dict[str, Any]:
    labelled = known.filter(pl.col("uid").is_in(pl.Series(list(labels.ratings), dtype=pl.String).implode()))
    if labelled.height < _MIN_LABELS:
        raise PairwrightError(
            f"{labelled.height} runs have a score and a label in {labels.source}: at least {_MIN_LABELS} are needed"
        )
    values = np.array([labels.ratings[uid] for uid in labelled["uid"]])
    if np.ptp(values) == 0:
        raise PairwrightError(f"all {len(values)} labels are {values[0]:g}: labels of both kinds are needed")
    bound = (values.min() + values.max()) / 2 if threshold is None else threshold
    scores = labelled["score"].to_numpy()
    middle = 0.5 if scores.min() >= 0 and scores.max() <= 1 else (scores.min() + scores.max()) / 2
    good, said = (values >= bound).astype(np.int64), (scores >= middle).astype(np.int64)
    slope, num_pairs, pairs_from = _fit_slope(scores, values, labelled)
    return {
        "labels": labelled.height,
        "threshold": float(bound),
        "score_threshold": float(middle),
        "base_rate": float(good.mean()),
        "judge_rate": float(said.mean()),
        "agreement": asdict(share(int((good == said).sum()), len(good))),
        "kappa": asdict(cohen_kappa(said, good)),
        "length_bias": asdict(
            length_slope(scores, good.astype(np.float64), labelled["num_completion_characters"].to_numpy())
        ),
        "curve": _curve(scores, good, known["score"].to_numpy()),
        "slope": slope,
        "slope_pairs": num_pairs,
        "slope_from": pairs_from,
    }


def _fit_slope(scores: Floats, values: Floats, labelled: pl.DataFrame) -> tuple[float, int, str]:
    """Fit the slope on pairs of runs with different labels: of one prompt, or of all prompts if there are too few."""
    one, other = np.triu_indices(len(scores), 1)
    if len(one) > _MAX_PAIRS:
        drawn = np.random.default_rng(0).choice(len(one), _MAX_PAIRS, replace=False)
        one, other = one[drawn], other[drawn]
    differ = values[one] != values[other]
    one, other = one[differ], other[differ]
    group = labelled.select(pl.struct("tid", "prompt_hash").rank("dense")).to_series().to_numpy()
    within = group[one] == group[other]
    is_within = int(within.sum()) >= _MIN_PAIRS
    if is_within:
        one, other = one[within], other[within]
    differences = (scores[one] - scores[other]) * np.sign(values[one] - values[other])
    # Pairs share runs: n runs count as n / 2 independent pairs.
    num_runs = len(np.unique(np.concatenate([one, other])))
    weights = np.full(len(differences), num_runs / 2 / max(1, len(differences)))
    return preference_slope(differences, weights), len(differences), "one prompt" if is_within else "all runs"


def _against_votes(known: pl.DataFrame, labels: Labels) -> dict[str, Any]:
    """Compare scores with votes on two runs, in three classes: first higher, second higher, tie."""
    scores: dict[str, float] = dict(known.select("uid", "score").iter_rows())
    lengths: dict[str, float] = dict(known.select("uid", "num_completion_characters").iter_rows())
    wins = [sides for sides in labels.wins if sides[0] in scores and sides[1] in scores]
    ties = [sides for sides in labels.ties if sides[0] in scores and sides[1] in scores]
    if len(wins) < _MIN_LABELS:
        raise PairwrightError(f"{len(wins)} votes are on two runs with a score: at least {_MIN_LABELS} are needed")
    # The order of sides is arbitrary: every second pair is swapped, so that the classes have equal base rates.
    said, voted, leans = [], [], []
    for number, (better, worse) in enumerate([*wins, *ties]):
        sign = -1 if number % 2 else 1
        said.append(1 + sign * int(np.sign(scores[better] - scores[worse])))
        voted.append(1 + sign if number < len(wins) else 1)
        leans.append(np.sign(lengths[better] - lengths[worse]) * np.sign(scores[better] - scores[worse]))
    differences = np.array([scores[better] - scores[worse] for better, worse in wins])
    right = sum(one == other for one, other in zip(said, voted, strict=True))
    return {
        "labels": len(said),
        "base_rate": len(wins) / len(said),
        "judge_rate": sum(one != 1 for one in said) / len(said),
        "agreement": asdict(share(right, len(said))),
        "kappa": asdict(cohen_kappa(np.array(said), np.array(voted))),
        "slope": preference_slope(differences, np.ones(len(differences))),
        "slope_pairs": len(wins),
        "slope_from": "votes",
        "curve": [],
        "longer_wins": float(np.mean([lean for lean in leans if lean])) if any(leans) else None,
    }


def _curve(scores: Floats, good: Ints, all_scores: Floats) -> list[dict[str, Any]]:
    """Return the reliability curve: labels and share of good ones for each score, or each tenth of the runs."""
    starts = np.unique(all_scores)
    if len(starts) > _MAX_BINS:
        starts = np.unique(np.quantile(all_scores, np.linspace(0, 1, _MAX_BINS + 1))[:-1])
    own, every = (np.searchsorted(starts, some, side="right") - 1 for some in (scores, all_scores))
    curve = []
    for number, start in enumerate(starts):
        chosen = own == number
        curve.append(
            {
                "from": float(start),
                "to": float(all_scores[every == number].max()),
                "runs": int((every == number).sum()),
                "labels": int(chosen.sum()),
                "good": asdict(share(int(good[chosen].sum()), int(chosen.sum()))),
            }
        )
    return curve


def _order_bias(table: Table, name: str, rows: pl.DataFrame) -> dict[str, Any]:
    """Return the order bias of a pairwise judge: how much more often the run shown first wins, from -1 to 1."""
    comparisons = read_comparisons(ScoreLog(table.path, name).path.with_suffix(".compared.jsonl"))
    if not comparisons:
        return {}
    tasks: dict[str, str] = dict(rows.select("uid", "tid").iter_rows())
    # +1 if the side shown first won, -1 if the other one did; mean of both orders.
    first = {"a": 1.0, "b": -1.0, "tie": 0.0}
    values = np.array([(first[one.first] - first[one.second]) / 2 for one in comparisons])
    _, clusters = np.unique([tasks.get(one.a, one.a) for one in comparisons], return_inverse=True)
    return {
        "order_bias": asdict(clustered_mean(values, clusters.astype(np.int64))),
        "order_agreement": asdict(share(sum(one.first == one.second for one in comparisons), len(comparisons))),
        "comparisons": len(comparisons),
    }


def _label_next(known: pl.DataFrame, labels: Labels, curve: Sequence[dict[str, Any]]) -> list[str]:
    """Return unlabelled runs whose labels would narrow the reliability curve most, most useful first."""
    labelled = set(labels.ratings) | {uid for sides in (*labels.wins, *labels.ties) for uid in sides}
    left = known.filter(~pl.col("uid").is_in(pl.Series(list(labelled), dtype=pl.String).implode()))
    if not left.height:
        return []
    # Drawn by the hash of the id, not by the order of the table.
    left = left.with_columns(draw=pl.col("uid").hash(0)).sort("draw")
    if not curve:
        return left["uid"].head(NUM_NEXT).to_list()
    starts = np.array([part["from"] for part in curve])
    bins = np.clip(np.searchsorted(starts, left["score"].to_numpy(), side="right") - 1, 0, len(curve) - 1)
    queues = [left["uid"].filter(pl.Series(bins == number)).to_list() for number in range(len(curve))]
    taken = [0] * len(curve)

    def use(number: int) -> float:
        """Return the expected width of a bin's interval after the labels taken so far, weighted by its runs."""
        part = curve[number]
        if taken[number] >= len(queues[number]):
            return -1.0
        width = 1.0 if part["good"]["low"] is None else part["good"]["high"] - part["good"]["low"]
        return float(width * math.sqrt(part["runs"] * (part["labels"] + 1) / (part["labels"] + 1 + taken[number])))

    chosen: list[str] = []
    while len(chosen) < min(NUM_NEXT, left.height):
        number = max(range(len(curve)), key=use)
        chosen.append(queues[number][taken[number]])
        taken[number] += 1
    return chosen


def format_estimate(estimate: dict[str, Any]) -> str:
    """Format an estimate of the report with its interval."""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if value is None:
        return "-"
    return f"{value:.3f} (no interval)" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"
