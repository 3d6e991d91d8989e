"""Small experience tables for tests of pairs."""

from pairwright import EID, Experience, Message, Table
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.pair_table import read_pairs

QUESTION = (Message("user", "Which way?"),)


def candidate(reward, text=None, *, task="t", run=0, step=0, batch="b", prompt=QUESTION, suffix=None, **fields):
    """A single-turn experience; its text is its reward unless it is given."""
    answer = (Message("assistant", f"answer {reward}" if text is None else text),) if text != () else ()
    return Experience(
        eid=EID(batch, task, run, step, suffix or "s"), kind="single_turn", prompt=prompt, completion=answer,
        reward=reward, **fields,
    )  # fmt: skip


def several(*rewards, **fields):
    """Candidates of one group, one a run."""
    return [candidate(reward, run=run, **fields) for run, reward in enumerate(rewards)]


def made(folder, experiences):
    with Table(folder) as table:
        table.append(experiences)
    return Table(folder)


def built(folder, experiences, **options):
    """The pairs of these experiences, and the summary."""
    table = made(folder / "experience", experiences)
    summary = build_pairs([table], folder / "pairs", PairOptions(**options))
    return list(read_pairs(folder / "pairs")), summary


def dropped(summary):
    """What was dropped: {reason: count} over all stages."""
    return {drop["reason"]: drop["count"] for stage in summary["stages"] for drop in stage["drops"]}


def rewards_of(pairs):
    return [(pair.chosen_reward, pair.rejected_reward) for pair in pairs]
