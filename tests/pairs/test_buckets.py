"""Builds that exceed the memory are planned and written in pieces, with identical files."""

import os
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_tables import candidate, made, several

from pairwright import Message, Table
from pairwright.errors import PairwrightError, TableError
from pairwright.pairs import PairOptions, buckets, build, build_pairs, fetch_texts
from pairwright.pairs import build as plan
from pairwright.pairs.buckets import bucket_of, num_buckets
from pairwright.pairs.candidates import candidates as rows
from pairwright.pairs.options import Threshold
from pairwright.pairs.shuffle_files import store_rows, take_rows
from pairwright.paths import build_folder
from pairwright.store import table as parquet

FILES = ("pairs.parquet", "funnel.json", "outcomes.parquet")
rewards = st.sampled_from([None, float("nan"), 0.0, 0.1, 0.3, 0.5, 0.9])


@st.composite
def experiences(draw):
    """Runs of few tasks at few prompts with few answers, so that everything that can coincide does."""
    rows = []
    for run in range(draw(st.integers(0, 24))):
        step, task = draw(st.integers(0, 1)), f"t{draw(st.integers(0, 3))}"
        prompt = (Message("user", f"question {draw(st.integers(0, 3))}"),)
        plain = {"prompt": (), "prompt_text": "plain?"} if draw(st.integers(0, 9)) == 0 else {"prompt": prompt}
        text = draw(st.sampled_from(["a", "bb", "ccc", "a longer answer", ""]))
        info = {"mask_sample": draw(st.booleans())} if draw(st.booleans()) else {}
        rows.append(candidate(draw(rewards), text, task=task, run=run, step=step, info=info, **plain))
    return rows


@st.composite
def options(draw):
    wanted = {
        "strategy": draw(st.sampled_from(["all", "best-worst", "stratified"])),
        "min_gap": draw(st.sampled_from([0.0, 0.2])),
        "max_pairs_per_group": draw(st.sampled_from([None, 1, 2])),
        "max_pairs_per_task": draw(st.sampled_from([None, 2])),
        "max_pairs": draw(st.sampled_from([None, 3])),
        "weight": draw(st.sampled_from(["one", "gap"])),
        "contradictions": draw(st.sampled_from(["drop", "majority", "keep"])),
        "dedupe": draw(st.booleans()),
        "validation": draw(st.sampled_from([0.0, 0.4])),
        "length_balance": draw(st.sampled_from([None, 0.2])),
        "curriculum": draw(st.sampled_from(["none", "easy-first"])),
        "curriculum_share": draw(st.sampled_from([None, 0.6])),
    }
    if draw(st.booleans()):
        wanted |= {"high": Threshold(0.8, is_quantile=True), "low": Threshold(0.3, is_quantile=True)}
    return PairOptions(**wanted)


def files_of(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(experiences(), options(), st.integers(2, 9), st.integers(2, 5))
def test_the_number_of_buckets_and_slices_changes_not_one_byte(tmp_path_factory, rows, asked, number, slices):
    folder = tmp_path_factory.mktemp("buckets")
    half = len(rows) // 2
    tables = [made(folder / "one", rows[:half]), made(folder / "other", rows[half:])]
    build_pairs(tables, folder / "whole", asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "num_buckets", lambda *_: number)
        patch.setattr(build, "num_slices", lambda *_, **__: slices)
        patch.setattr(fetch_texts, "_PIECE_BYTES", 500)
        build_pairs(tables[::-1], folder / "parted", asked)
    assert files_of(folder / "parted") == files_of(folder / "whole")
    assert {path.name for path in (folder / "parted").iterdir()} == {*FILES, "lineage.json", ".lock"}, (
        "nothing else is left behind"
    )


def many_groups(num_groups=30):
    return [
        row
        for task in range(num_groups)
        for row in several(0.9, 0.6, 0.5, 0.1, task=f"t{task}", prompt=(Message("user", f"question {task}"),))
    ]


def test_rows_that_go_to_buckets_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    table = made(tmp_path / "one", many_groups()[:70])
    other = made(tmp_path / "other", many_groups()[70:])
    build_pairs([table, other], tmp_path / "whole")
    monkeypatch.setattr(plan, "num_buckets", lambda *_: 4)
    monkeypatch.setattr(plan, "read_candidate_rows", lambda *_: pytest.fail("all rows were read at once"))
    monkeypatch.setattr(rows, "_BATCH_BYTES", 1)
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 7)
    sizes = []
    finished = rows._fix_rare_rows
    monkeypatch.setattr(rows, "_fix_rare_rows", lambda some: sizes.append(some.height) or finished(some))
    build_pairs([table, other], tmp_path / "parted")
    assert max(sizes) == 7
    assert sum(sizes) == 120
    assert files_of(tmp_path / "parted") == files_of(tmp_path / "whole")


def test_only_the_chosen_rows_bring_their_prompts(tmp_path):
    table = made(tmp_path / "experience", several(0.9, 0.5, 0.1))
    chosen, rejected = np.array([0, 0, 1]), np.array([1, 2, 2])
    drafts = pl.DataFrame({"chosen_row": chosen, "rejected_row": rejected}).with_columns(
        cut=pl.lit(None, pl.Int64),
        row_uid=pl.lit(None, pl.String),
        chosen_at=pl.lit(None, pl.Int64),
        rejected_at=pl.lit(None, pl.Int64),
    )
    some = fetch_texts.PairTexts(3, 1, None)
    some.add(drafts, np.arange(3))
    ((number, found),) = fetch_texts.fetch_texts_of(table, some.columns, some.take_wanted())
    assert number == 0
    assert found["row"].to_pylist() == [0, 1, 2]
    assert [prompt is None for prompt in found["prompt"].to_pylist()] == [False, False, True]
    assert None not in found["completion"].to_pylist()


def test_a_bucket_with_too_many_pairs_is_parted_further(tmp_path, monkeypatch):
    table = made(tmp_path / "experience", many_groups())
    build_pairs([table], tmp_path / "whole")
    monkeypatch.setattr(buckets, "BYTES_PER_PAIR", 2**20)  # sixteen pairs at once
    planned = []
    plan_partition = plan.plan_partition
    monkeypatch.setattr(plan, "plan_partition", lambda *a, **k: planned.append(1) or plan_partition(*a, **k))
    build_pairs([table], tmp_path / "parted", PairOptions(memory_megabytes=16))
    assert len(planned) > 8
    for name in ("pairs.parquet", "outcomes.parquet"):
        assert files_of(tmp_path / "parted")[name] == files_of(tmp_path / "whole")[name]


def test_few_rows_are_one_bucket_and_many_are_as_many_as_the_memory_asks_for(tmp_path, monkeypatch):
    table = made(tmp_path, many_groups())
    assert num_buckets([table], PairOptions()) == 1
    monkeypatch.setattr(buckets, "BYTES_PER_ROW", 2**20)
    assert num_buckets([table], PairOptions(memory_megabytes=16)) == 8  # 120 rows of a megabyte
    assert num_buckets([table], PairOptions(memory_megabytes=32)) == 4
    assert num_buckets([table], PairOptions(memory_megabytes=16, strategy="divergence")) == 1


def test_buckets_are_ranges_of_prompt_hashes():
    rng = random.Random(0)
    hashes = pl.DataFrame({"prompt_hash": sorted(f"{rng.getrandbits(128):032x}" for _ in range(500))})
    for number in (1, 7, 64):
        found = hashes.select(bucket_of(number)).to_series()
        assert found.is_sorted()
        assert found.unique().to_list() == list(range(number))


def test_a_table_that_changes_meanwhile_is_an_error_not_other_pairs(tmp_path, monkeypatch):
    table = made(tmp_path / "experience", many_groups(4))
    select = build.select_drafts

    def delete_first(*arguments):
        table.delete(pl.col("run") == 0)
        return select(*arguments)

    monkeypatch.setattr(build, "select_drafts", delete_first)
    with pytest.raises(TableError, match="build them again"):
        build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs")
    assert not (tmp_path / "pairs" / "pairs.parquet").exists()


@pytest.mark.parametrize("stopped_at", ["texts", "pairs.parquet", "outcomes.parquet", "funnel.json", "lineage.json"])
def test_a_build_that_is_stopped_never_leaves_files_of_two_builds(tmp_path, monkeypatch, stopped_at):
    made(tmp_path / "experience", many_groups(4))
    contents = []
    for options in (PairOptions(), PairOptions(strategy="best-worst")):
        build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs", options)
        contents.append({path.name: path.read_bytes() for path in (tmp_path / "pairs").iterdir() if path.is_file()})
    replace = os.replace

    def stop(source, target):
        if Path(target).name == stopped_at:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop)
    if stopped_at == "texts":
        monkeypatch.setattr(build, "write_pair_file", lambda *_: stop("", stopped_at))
    with pytest.raises(KeyboardInterrupt):
        build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs")
    left = {path.name: path.read_bytes() for path in (tmp_path / "pairs").iterdir() if path.is_file()}
    assert left["pairs.parquet"] in (contents[0]["pairs.parquet"], contents[1]["pairs.parquet"])
    build_of = 0 if left["pairs.parquet"] == contents[0]["pairs.parquet"] else 1
    assert left.items() <= contents[build_of].items()
    assert stopped_at != "texts" or left == contents[1], "nothing has changed before all files are made"


def test_what_dead_builds_left_behind_goes_and_living_ones_stay(tmp_path):
    for pid in (2**22 + 1, 1):
        (tmp_path / f".build.{pid}.00").mkdir()
    with build_folder(tmp_path) as folder:
        assert {path.name for path in tmp_path.iterdir()} == {folder.name, ".build.1.00"}
    assert [path.name for path in tmp_path.iterdir()] == [".build.1.00"]


def test_a_disk_that_refuses_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PairwrightError, match="file"):
        build_pairs([made(tmp_path / "experience", several(0.1, 0.2))], tmp_path / "file")


@pytest.mark.parametrize("in_memory", [True, False])
def test_stored_rows_come_back_once(tmp_path, in_memory):
    for frame in (pl.DataFrame({"value": [1, 2], "text": ["a", None]}), pl.DataFrame(schema={"value": pl.Int64})):
        stored = store_rows(None if in_memory else tmp_path, frame)
        assert take_rows(stored).equals(frame)
        assert not list(tmp_path.iterdir())
