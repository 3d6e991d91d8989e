"""Every stage on S3, against a real server on loopback: the bytes equal those of a local run, and partial files are never visible."""

import gc
import gzip
import io
import json
import random
import subprocess
import sys

import polars as pl
import pytest
import zstandard

from pairs.made_tables import candidate
from pairwright import Message, Table
from pairwright.config import TokensConfig
from pairwright.engines import Pool
from pairwright.errors import PairwrightError, PlaceError, TableError
from pairwright.export import EXPORTERS, ExportOptions
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.outcomes import explain
from pairwright.pairs.pair_stats import pair_statistics
from pairwright.paths import place
from pairwright.sources.format import Options
from pairwright.store.arrow import to_batch
from pairwright.store.exporting import export_experiences
from pairwright.store.importing import import_files
from pairwright.store.table_stats import table_statistics
from pairwright.tokens.stage import stage
from pairwright.tokens.stage.stage import encode_source
from paths.made_traces import digests, trace_lines
from training.made_runs import make_tokenizer

pytestmark = pytest.mark.stress

OPTIONS = PairOptions(max_pairs_per_task=4, max_pairs=60, weight="gap", validation=0.3)


def several_slices(monkeypatch):
    monkeypatch.setattr("pairwright.pairs.build.num_slices", lambda *_, **__: 5)


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(trace_lines())
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(trace_lines(24, 30)))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(trace_lines(30, 36)))
    return folder


@pytest.fixture
def both(traces, tmp_path, bucket, monkeypatch):
    """The same traces imported into a local table and into one on S3, a part for each file."""
    monkeypatch.setattr("pairwright.store.importing.RANGE_BYTES", 8192)
    for folder in (tmp_path / "experience", bucket.url("experience")):
        import_files([str(traces)], Table(folder))
    return tmp_path, bucket


def test_import_gives_the_parts_and_the_quarantine_of_a_local_import(both):
    folder, bucket = both
    expected = digests(folder / "experience", names=False)
    assert len(expected) == 5
    assert digests(bucket.url("experience"), names=False) == expected
    assert bucket.objects("experience") == bucket.visible("experience"), "nothing hidden is left"
    lines = bucket.get("experience/quarantine.jsonl").splitlines()
    assert [json.loads(line)["line"] for line in lines] == [3, 3, 3]


def test_traces_on_s3_are_read_as_local_ones(traces, tmp_path, bucket, monkeypatch):
    """By glob, compressed or not, whole or in ranges; only the file's name is another."""
    monkeypatch.setattr("pairwright.store.importing.RANGE_BYTES", 2_000)
    for path in traces.iterdir():
        bucket.put(f"traces/{path.name}", path.read_bytes())
    bucket.put("traces/.hidden.jsonl", trace_lines())
    import_files([str(traces / "*.jsonl*")], Table(tmp_path / "local"))
    summary = import_files([bucket.url("traces/*.jsonl*")], Table(tmp_path / "from-s3"))
    assert summary.total("files") == 3
    rows = [
        Table(tmp_path / name).lazy().select(pl.exclude("uid", "source")).collect() for name in ("local", "from-s3")
    ]
    assert rows[1].equals(rows[0])
    assert set(Table(tmp_path / "from-s3").lazy().collect()["source"]) == {
        bucket.url(f"traces/{name}") for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst")
    }
    import_files([bucket.url("traces/*.jsonl*")], Table(bucket.url("to-s3")), engine=Pool(2))
    assert digests(bucket.url("to-s3"), names=False) == digests(tmp_path / "from-s3", names=False)
    assert len(digests(tmp_path / "from-s3", suffix=".parquet")) > 5


def test_importing_again_adds_nothing_and_update_replaces(traces, bucket):
    table = Table(bucket.url("experience"))
    first = import_files([str(traces)], table)
    before = bucket.objects()
    again = import_files([str(traces)], Table(bucket.url("experience")))
    assert again.total("already_there") == first.total("experiences") == table.count() == 144
    assert bucket.objects() == before
    with open(traces / "a.jsonl", "ab") as file:
        file.write(trace_lines(40, 41, torn=False))
    assert import_files([str(traces)], Table(bucket.url("experience"))).total("already_there") == 144
    assert Table(bucket.url("experience"), create=False).count() == 148
    (traces / "a.jsonl").write_bytes(trace_lines(0, 5))
    summary = import_files([str(traces / "a.jsonl")], Table(bucket.url("experience")), update=True)
    assert summary.num_replaced == 80
    assert Table(bucket.url("experience"), create=False).count() == 68
    (traces / "b.jsonl.gz").write_bytes(trace_lines(24, 30, torn=False))
    import_files([str(traces / "b.jsonl.gz")], Table(bucket.url("experience")))
    assert len(bucket.get("experience/quarantine.jsonl").splitlines()) == 2
    (traces / "a.jsonl").write_bytes(trace_lines(0, 5, torn=False))
    (traces / "c.jsonl.zst").write_bytes(trace_lines(30, 36, torn=False))
    import_files([str(traces)], Table(bucket.url("experience")))
    assert "experience/quarantine.jsonl" not in bucket.objects()
    assert bucket.objects() == bucket.visible()


def test_a_binary_payload_is_fetched_and_named_by_its_address(bucket, tmp_path):
    bucket.put("bad.eval", b"PK\x03\x04 no zip")
    summary = import_files([bucket.url("bad.eval")], Table(tmp_path / "experience"), options=Options())
    assert summary.total("quarantined") == 1
    found = json.loads((tmp_path / "experience" / "quarantine.jsonl").read_bytes())
    assert found["file"] == bucket.url("bad.eval")
    assert "pairwright-" not in found["reason"]


def test_a_table_on_s3_answers_as_a_local_one(both):
    folder, bucket = both
    tables = [Table(folder / "experience"), Table(bucket.url("experience"), create=False)]
    scored = pl.col("reward") > 0.4
    assert table_statistics(tables[1]) == table_statistics(tables[0])
    for found in (
        lambda table: table.count(),
        lambda table: table.count(scored),
        lambda table: table.head(3, scored),
        lambda table: list(table.records(scored)),
        lambda table: [batch.to_pylist() for batch in table.scan(scored, ["uid", "reward"])] != [],
        lambda table: table.group_by("task").collect().to_dicts(),
        lambda table: table.lazy().select("uid").slice(5, 9).collect().to_dicts(),
        lambda table: len(table.segments()),
    ):
        assert found(tables[1]) == found(tables[0])
    for name in ("jsonl", "parquet", "bytes"):
        for table, target in zip(tables, (folder / name, place(bucket.url(f"export/{name}"))), strict=True):
            assert export_experiences(table, name, target) == 144
        assert bucket.get(f"export/{name}") == (folder / name).read_bytes()
    with pytest.raises(PairwrightError, match="a dataset is a folder"):
        export_experiences(tables[0], "hf", place(bucket.url("hf")))


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(None, id="alone"),
        pytest.param(Pool(1), id="pieces"),
        pytest.param(Pool(2), id="two processes", marks=pytest.mark.slow),
    ],
)
def test_pairs_on_s3_have_the_bytes_of_local_ones(both, monkeypatch, engine):
    folder, bucket = both
    build_pairs([Table(folder / "experience")], folder / "pairs", OPTIONS)
    several_slices(monkeypatch)
    remote = Table(bucket.url("experience"), create=False)
    build_pairs([remote], place(bucket.url("pairs")), OPTIONS, engine=engine)
    assert digests(bucket.url("pairs")) == digests(folder / "pairs")
    assert bucket.objects("pairs") == [
        f"pairs/{name}" for name in ("funnel.json", "lineage.json", "outcomes.parquet", "pairs.parquet")
    ]
    # from there to here, and from here to there
    build_pairs([remote], folder / "mixed", OPTIONS, engine=engine)
    assert digests(folder / "mixed") == digests(folder / "pairs")
    build_pairs([Table(folder / "experience")], place(bucket.url("mixed")), OPTIONS, engine=engine)
    assert digests(bucket.url("mixed")) == digests(folder / "pairs")
    assert pair_statistics(place(bucket.url("pairs"))) == pair_statistics(folder / "pairs")
    uid = next(iter(remote.lazy().collect()["uid"]))
    assert explain(place(bucket.url("pairs")), uid) == explain(folder / "pairs", uid)


def test_strategies_that_read_texts_while_they_plan_read_them_from_s3(both):
    folder, bucket = both
    for options in (PairOptions(strategy="divergence"), PairOptions(near_duplicates=0.9)):
        build_pairs([Table(folder / "experience")], folder / "pairs", options)
        build_pairs([Table(bucket.url("experience"))], place(bucket.url("pairs")), options, engine=Pool(1))
        assert digests(bucket.url("pairs")) == digests(folder / "pairs")


def test_exports_and_sequences_have_the_bytes_of_local_ones(both, monkeypatch):
    folder, bucket = both
    monkeypatch.setattr(stage, "ITEMS_PER_TASK", 20)
    build_pairs([Table(folder / "experience")], folder / "pairs", OPTIONS)
    build_pairs([Table(folder / "experience")], place(bucket.url("pairs")), OPTIONS)
    for target in ("trl", "parquet"):
        for pairs, output in (
            (folder / "pairs", folder / target),
            (place(bucket.url("pairs")), place(bucket.url(target))),
        ):
            assert EXPORTERS[target](pairs, output, ExportOptions()).written > 10
        assert bucket.get(target) == (folder / target).read_bytes()
    make_tokenizer(folder / "tokenizer")
    options = TokensConfig(tokenizer=str(folder / "tokenizer"))
    local = encode_source(folder / "pairs", folder / "tokens", options, engine=Pool(1))
    remote = encode_source(place(bucket.url("pairs")), place(bucket.url("tokens")), options, engine=Pool(1))
    assert remote == local | {"source": bucket.url("pairs")}
    sequences = digests(folder / "tokens", suffix=".parquet", names=False)
    assert len(sequences) > 3
    assert digests(bucket.url("tokens"), suffix=".parquet", names=False) == sequences
    before = bucket.objects("tokens")
    again = encode_source(place(bucket.url("pairs")), place(bucket.url("tokens")), options, engine=Pool(1))
    assert again["from_cache"] == again["items"] == local["items"]
    assert bucket.objects("tokens") == before


@pytest.fixture
def wide(bucket):
    """A table whose texts are far larger than all else in it."""
    chance = random.Random(3)
    rows = []
    for number in range(400):
        prompt = (Message("user", f"question {number // 4} " + chance.randbytes(2000).hex()),)
        rows.append(
            candidate(number % 4, chance.randbytes(2000).hex(), task=f"t{number // 4}", run=number, prompt=prompt)
        )
    Table(bucket.url("wide")).write_part([to_batch(rows)])
    return Table(bucket.url("wide"), create=False)


def test_only_the_columns_that_are_needed_are_fetched(wide, s3, bucket):
    (part,) = [key for key in bucket.objects("wide") if key.endswith(".parquet")]
    size = len(bucket.get(part))
    assert size > 800_000
    for narrow in (
        lambda: table_statistics(wide),
        lambda: list(wide.scan(columns=["uid", "reward"])),
        lambda: wide.count(pl.col("reward") > 1),
        lambda: wide.lazy().select("task").collect(),
    ):
        s3.asked.clear()
        narrow()
        assert 0 < s3.bytes_asked(".parquet") < size / 3
    s3.asked.clear()
    list(wide.records())
    assert s3.bytes_asked(".parquet") > size * 0.9


def test_a_put_that_fails_leaves_nothing_to_see_and_says_where(both, s3):
    folder, bucket = both
    table = Table(bucket.url("experience"), create=False)
    build_pairs([table], place(bucket.url("pairs")))
    before = {key: bucket.get(key) for key in bucket.objects()}
    s3.failing = lambda method, path: "AccessDenied" if method in ("PUT", "POST") and "pairs.parquet" in path else None
    for engine in (None, Pool(1)):
        with pytest.raises(PlaceError, match=rf"^{bucket.url('pairs/pairs.parquet')}: access denied"):
            build_pairs([table], place(bucket.url("pairs")), OPTIONS, engine=engine)
    assert {key: bucket.get(key) for key in bucket.objects()} == before, "no file of the build that failed"
    s3.failing = lambda method, path: "AccessDenied" if method in ("PUT", "POST") and ".tmp" in path else None
    more = folder / "more.jsonl"
    more.write_bytes(trace_lines(50, 60))
    with pytest.raises(PlaceError, match=r"\.tmp: access denied"):
        import_files([str(more)], Table(bucket.url("experience")))
    s3.failing = None
    assert set(bucket.objects()) == set(before), "nothing was added, hidden folders are gone"


LEFT_IN_PIECES = """
import pathlib, sys
import pairwright.paths.addresses as addresses
from pairwright.paths import place
class Torn:
    def __init__(self, *_): self.chunks = [b"x" * 2**24] * 2
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def read(self, _):
        if not self.chunks: raise ValueError("torn")
        return self.chunks.pop()
addresses.open = Torn
try:
    place(sys.argv[1]).put(pathlib.Path("unused"))
except ValueError:
    print("failed", flush=True)
"""


def test_a_process_whose_upload_failed_ends_and_publishes_nothing(bucket):
    """At its end the stream's destructor would wait for an upload that no thread does any more, or publish a part."""
    words = [sys.executable, "-c", LEFT_IN_PIECES, bucket.url("large")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "failed\n", "")
    assert bucket.objects() == []


class Torn(io.FileIO):
    """A file while somebody presses Ctrl-C."""

    def read(self, size=-1):
        if self.tell():
            raise KeyboardInterrupt
        return super().read(size)


def test_a_large_file_that_is_sent_in_pieces_appears_whole_or_not_at_all(bucket, s3, tmp_path, monkeypatch):
    (tmp_path / "large").write_bytes(random.Random(1).randbytes(25 * 2**20))
    there = place(bucket.url("folder/large"))
    s3.failing = lambda method, path: "AccessDenied" if "partNumber=2" in path else None
    with pytest.raises(PlaceError, match=rf"^{there}: access denied"):
        there.put(tmp_path / "large")
    assert bucket.objects() == []
    s3.failing = None

    monkeypatch.setattr("pairwright.paths.addresses.open", Torn, raising=False)
    with pytest.raises(KeyboardInterrupt):
        there.put(tmp_path / "large")
    gc.collect()
    assert bucket.objects() == []
    monkeypatch.undo()
    there.put(tmp_path / "large")
    assert bucket.get("folder/large") == (tmp_path / "large").read_bytes()
    there.fetch(tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()


def test_a_table_that_was_copied_there_is_read_with_its_journals(tmp_path, bucket):
    with Table(tmp_path / "experience") as table:
        table.append([candidate(number, run=number) for number in range(4)])
    table.append([candidate(number, run=number) for number in range(4, 9)])
    assert sorted(path.suffix for path in (tmp_path / "experience").iterdir()) == [".journal", ".json", ".parquet"]
    for path in (tmp_path / "experience").iterdir():
        bucket.put(f"experience/{path.name}", path.read_bytes())
    remote = Table(bucket.url("experience"), create=False)
    assert remote.count() == table.count() == 9
    assert list(remote.records()) == list(table.records())
    for engine in (None, Pool(1)):
        build_pairs([remote], place(bucket.url("pairs")), engine=engine)
        build_pairs([table], tmp_path / "pairs")
        assert digests(bucket.url("pairs")) == digests(tmp_path / "pairs")


def test_what_cannot_be_fetched_is_an_error_and_no_bad_record(traces, bucket, s3):
    bucket.put("traces/a.jsonl", trace_lines())
    table = Table(bucket.url("experience"))
    s3.failing = lambda method, path: "AccessDenied" if "a.jsonl" in path else None
    with pytest.raises(PlaceError, match=rf"^{bucket.url('traces/a.jsonl')}: access denied: credentials are taken"):
        import_files([bucket.url("traces/*.jsonl")], table)
    s3.failing = lambda method, path: "AccessDenied" if method == "GET" and "/traces/a.jsonl" in path else None
    with pytest.raises(PlaceError, match=rf"^{bucket.url('traces/a.jsonl')}: access denied"):
        import_files([bucket.url("traces/*.jsonl")], table)
    assert table.count() == 0
    s3.failing = None
    import_files([bucket.url("traces/a.jsonl")], table)
    (part,) = [key for key in bucket.objects("experience") if key.endswith(".parquet")]
    for refused in (
        lambda: list(table.records()),
        lambda: table_statistics(table),
        lambda: table.count(pl.col("run") > 0),
    ):
        s3.failing = lambda method, path: "AccessDenied" if ".parquet" in path else None
        with pytest.raises(PlaceError, match=rf"^{bucket.url(part)}: access denied"):
            refused()
    s3.failing = None
    rows = table.lazy().select("uid")
    bucket.client.delete_object(Bucket=bucket.name, Key=part)
    with pytest.raises(PlaceError, match=rf"^{bucket.url(part)}: no such file"):
        rows.collect()


def test_a_damaged_part_and_what_is_no_pairs_table_are_named(bucket, tmp_path):
    Table(bucket.url("experience"))
    bucket.put("experience/0001.parquet", b"no parquet at all")
    with pytest.raises(PlaceError, match=r"0001\.parquet: .*[Pp]arquet"):
        list(Table(bucket.url("experience")).records())
    with pytest.raises(TableError, match=r"experience: an experience table; build pairs from it first"):
        pair_statistics(place(bucket.url("experience")))
    make_tokenizer(tmp_path)
    with pytest.raises(TableError, match="neither an experience table nor pairs"):
        encode_source(place(bucket.url("nothing")), place(bucket.url("tokens")), TokensConfig(tokenizer=str(tmp_path)))


def test_files_of_two_builds_are_never_together_on_s3(both, s3):
    _, bucket = both
    table = Table(bucket.url("experience"), create=False)
    build_pairs([table], place(bucket.url("pairs")))
    before = bucket.get("pairs/outcomes.parquet")
    s3.failing = lambda method, path: (
        "AccessDenied" if method in ("PUT", "POST") and "outcomes.parquet" in path else None
    )
    with pytest.raises(PlaceError, match=r"outcomes\.parquet: access denied"):
        build_pairs([table], place(bucket.url("pairs")), OPTIONS)
    s3.failing = None
    assert "pairs/outcomes.parquet" not in bucket.objects(), "the old outcomes are not those of the new pairs"
    build_pairs([table], place(bucket.url("pairs")), OPTIONS)
    assert bucket.get("pairs/outcomes.parquet") != before
