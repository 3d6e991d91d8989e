"""Whoever does the work, and whoever dies over it: the bytes that are written are the same."""

import json
import random
from hashlib import sha256

import pytest

from engines.mapped import Dying
from pairs.made_tables import candidate
from pairwright import Message, Table
from pairwright.config import TokensConfig
from pairwright.engines import Pool
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.options import Threshold
from pairwright.store.importing import import_files
from pairwright.tokens.stage import stage
from pairwright.tokens.stage.stage import encode_source
from training.made_runs import make_tokenizer

OPTIONS = {
    "best and worst, split": PairOptions(strategy="best-worst", validation=0.3),
    "all, capped and sampled": PairOptions(max_pairs_per_task=3, max_pairs=60, weight="gap", contradictions="majority"),
    "stratified by quantiles": PairOptions(strategy="stratified", high=Threshold(0.7, True), low=Threshold(0.3, True)),
    "filtered": PairOptions(where="run < 3 AND completion NOT LIKE '%answer 7%'"),
    "no groups": PairOptions(strategy="stratified", across_groups=True, max_pairs=20),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Several parts and a journal; equal prompts in several of them, repeated candidates, ties, lone candidates."""
    chance = random.Random(7)
    folder = tmp_path_factory.mktemp("engines") / "experience"
    for part in range(4):
        rows = []
        for task in range(12):
            prompt = (Message("user", f"task {task}, told in way {chance.randrange(3)}"),)
            for run in range(chance.randrange(1, 6)):
                reward = chance.choice([0.0, 0.25, 0.5, 0.75, 1.0, None])
                answer = f"answer {chance.randrange(8)} " * chance.randrange(1, 20)
                rows.append(
                    candidate(
                        reward, answer, task=f"t{task}", run=run, batch=f"b{part % 2}", prompt=prompt, suffix=f"{part}"
                    )
                )
        if part < 3:
            with Table(folder) as made:
                made.append(rows)
        else:
            Table(folder).append(rows)
    return Table(folder, create=False)


def digests(folder, *, pattern="*"):
    """What the visible files of a folder hold, in the order of their names. Names of parts have the time in them."""
    files = [path for path in sorted(folder.glob(pattern)) if path.is_file() and not path.name.startswith(".")]
    return [sha256(path.read_bytes()).hexdigest() for path in files]


def slices(monkeypatch, number):
    monkeypatch.setattr("pairwright.pairs.build.num_slices", lambda *_, **__: number)


@pytest.mark.parametrize("name", OPTIONS)
def test_pairs_made_in_pieces_have_the_bytes_of_those_made_at_once(table, tmp_path, monkeypatch, name):
    alone = build_pairs([table], tmp_path / "alone", OPTIONS[name])
    assert alone["pairs"] > 10
    slices(monkeypatch, 5)
    seen = []
    build_pairs(
        [table],
        tmp_path / "pieces",
        OPTIONS[name],
        engine=Pool(1),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert digests(tmp_path / "pieces") == digests(tmp_path / "alone")
    assert len(digests(tmp_path / "pieces")) == 4
    assert (5, 5) in seen


def test_pairs_made_by_two_processes_have_the_bytes_of_one(table, tmp_path):
    for name, engine in (("alone", None), ("two", Pool(2))):
        build_pairs([table], tmp_path / name, OPTIONS["best and worst, split"], engine=engine)
    assert digests(tmp_path / "two") == digests(tmp_path / "alone")


def test_a_table_without_experiences_gives_no_pairs_on_any_engine(tmp_path):
    empty = Table(tmp_path / "empty")
    for name, engine in (("alone", None), ("two", Pool(1))):
        assert build_pairs([empty], tmp_path / name, engine=engine)["pairs"] == 0
    assert digests(tmp_path / "two") == digests(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["best and worst, split", "stratified by quantiles"])
def test_pairs_made_on_a_cluster_have_the_bytes_of_one_process(table, ray_engine, tmp_path, monkeypatch, name):
    build_pairs([table], tmp_path / "alone", OPTIONS[name])
    slices(monkeypatch, 5)
    build_pairs([table], tmp_path / "ray", OPTIONS[name], engine=ray_engine)
    assert digests(tmp_path / "ray") == digests(tmp_path / "alone")


@pytest.mark.slow
def test_pairs_have_these_bytes_when_workers_are_killed_on_the_way(table, ray_engine, tmp_path, monkeypatch):
    options = OPTIONS["all, capped and sampled"]
    build_pairs([table], tmp_path / "alone", options)
    slices(monkeypatch, 5)
    killed = Dying(ray_engine, tmp_path / "killed")
    build_pairs([table], tmp_path / "ray", options, engine=killed)
    assert digests(tmp_path / "ray") == digests(tmp_path / "alone")
    assert len(list((tmp_path / "killed").iterdir())) == 4, "each of the four steps had workers"
    hidden = [path.name for path in (tmp_path / "ray").glob(".*")]
    assert hidden == [".lock"], "nothing is left of the work"


@pytest.mark.slow
def test_sequences_made_on_a_cluster_have_the_bytes_of_one_process(table, ray_engine, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "ITEMS_PER_TASK", 7)
    make_tokenizer(tmp_path / "tokenizer")
    options = TokensConfig(tokenizer=str(tmp_path / "tokenizer"))
    build_pairs([table], tmp_path / "pairs", OPTIONS["best and worst, split"])
    for source in (table.path, tmp_path / "pairs"):
        names = [f"{source.name}-{engine}" for engine in ("alone", "ray", "killed")]
        engines = [Pool(1), ray_engine, Dying(ray_engine, tmp_path / "deaths" / source.name)]
        for name, engine in zip(names, engines, strict=True):
            encode_source(source, tmp_path / name, options, engine=engine)
        found = [digests(tmp_path / name) for name in names]
        assert len(found[0]) > 4
        assert found[1] == found[0]
        assert found[2] == found[0]


@pytest.mark.slow
def test_a_table_imported_on_a_cluster_has_the_rows_of_one_process(ray_engine, tmp_path, monkeypatch):
    monkeypatch.setattr("pairwright.store.importing.RANGE_BYTES", 2_000)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"question {n}"},
                {"role": "assistant", "content": "answer " * (n % 9)},
            ]
        }
        for n in range(300)
    ]
    lines = [json.dumps(row) for row in rows]
    lines[100] = "{torn"
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    summaries = [
        import_files(["traces.jsonl"], Table(name), engine=engine)
        for name, engine in (
            ("alone", Pool(1)),
            ("ray", ray_engine),
            ("killed", Dying(ray_engine, tmp_path / "deaths")),
        )
    ]
    assert summaries[0].total("quarantined") == 1
    assert summaries[1:] == summaries[:1] * 2
    expected = digests(tmp_path / "alone", pattern="*.parquet")
    assert len(expected) > 5
    for name in ("ray", "killed"):
        assert digests(tmp_path / name, pattern="*.parquet") == expected
        assert (tmp_path / name / "quarantine.jsonl").read_bytes() == (tmp_path / "alone/quarantine.jsonl").read_bytes()
