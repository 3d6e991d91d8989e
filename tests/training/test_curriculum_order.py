"""A curriculum is trained in the order of the table."""

import json

from pairwright import EID, Experience, Message, Table
from pairwright.config import Config
from pairwright.config.sections import TokensConfig
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.pair_table import read_pairs
from pairwright.tokens.stage.stage import encode_source
from pairwright.training import read_status, train


def pairs_in_order(folder, curriculum):
    """Ten tasks with one pair each; the first ones are the easiest."""
    with Table(folder / "experience") as table:
        table.append(
            Experience(
                eid=EID(0, task, run, suffix="s"), kind="single_turn", prompt=[Message("user", f"say {task}")],
                completion=[Message("assistant", f"it is {task} {run}")], reward=(1 - task / 20) * run,
            )
            for task in range(10) for run in range(2)
        )  # fmt: skip
    build_pairs([Table(folder / "experience")], folder / "pairs", PairOptions(curriculum=curriculum))
    return folder / "pairs"


def config(**changes):
    base = {"batch_size": 4, "learning_rate": 1e-3, "threads": 1, "dump_batches": 99}
    return Config.model_validate({"train": base | changes})


def batches_of(run, channel="dpo"):
    files = sorted((run / "batches").glob("step-*.json"))
    return [[item["id"] for item in json.loads(path.read_bytes())["channels"][channel]] for path in files]


def test_a_curriculum_is_not_shuffled_away(model, tmp_path):
    pairs = pairs_in_order(tmp_path, "easy-first")
    channels = {"dpo": 1.0, "sft": 0.5}
    train(config(epochs=2, channels=channels), model=model, pairs=pairs, output=tmp_path / "run")
    table = [pair.id for pair in read_pairs(pairs)]
    for channel in channels:
        assert [pair for batch in batches_of(tmp_path / "run", channel) for pair in batch] == table * 2
    assert "order of the table" in " ".join(read_status(tmp_path / "run").notes)


def test_the_order_of_the_table_counts_and_not_that_of_the_cache(model, tmp_path):
    """The tokens come from the cache, which has the order of an earlier build of the table."""
    tokens = tmp_path / "tokens"
    for name in ("hard-first", "easy-first"):
        pairs = pairs_in_order(tmp_path / name, name)
        if not tokens.exists():
            encode_source(pairs, tokens, TokensConfig(tokenizer=str(model)), num_workers=1)
        train(config(epochs=1), model=model, pairs=pairs, output=tmp_path / name / "run", tokens=tokens)
        trained = [pair for batch in batches_of(tmp_path / name / "run") for pair in batch]
        assert trained == [pair.id for pair in read_pairs(pairs)]
