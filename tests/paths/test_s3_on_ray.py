"""Addresses on a cluster: whoever does the work, and whoever dies over it, the bytes on S3 are those of a local run."""

from dataclasses import dataclass
from functools import partial

import pytest

from engines.mapped import Dying
from pairwright import Table
from pairwright.config import TokensConfig
from pairwright.pairs import PairOptions, build_pairs
from pairwright.paths import place
from pairwright.store.importing import import_files
from pairwright.tokens.stage import stage
from pairwright.tokens.stage.stage import encode_source
from paths.made_traces import command, digests, in_environment, trace_lines
from training.made_runs import make_tokenizer

pytestmark = pytest.mark.slow
OPTIONS = PairOptions(max_pairs_per_task=4, max_pairs=60, weight="gap", validation=0.3)


@dataclass(frozen=True)
class Equipped:
    """An engine on nodes that were started with an environment."""

    engine: object
    environment: dict

    @property
    def num_workers(self):
        return self.engine.num_workers

    def map(self, function, tasks):
        return self.engine.map(partial(in_environment, function=function, environment=self.environment), tasks)


@pytest.fixture
def equipped(ray_engine, s3):
    return Equipped(ray_engine, s3.environment)


def test_import_pairs_and_tokens_on_a_cluster_have_the_bytes_of_one_process(equipped, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("pairwright.store.importing.RANGE_BYTES", 2_000)
    monkeypatch.setattr(stage, "ITEMS_PER_TASK", 20)
    bucket.put("traces/a.jsonl", trace_lines())
    bucket.put("traces/b.jsonl", trace_lines(24, 30))
    make_tokenizer(tmp_path / "tokenizer")
    options = TokensConfig(tokenizer=str(tmp_path / "tokenizer"))
    roots = {"local": None, "ray": equipped, "killed": Dying(equipped, tmp_path / "deaths")}
    found = {}
    for name, engine in roots.items():
        root = str(tmp_path) if engine is None else bucket.url(name)
        summary = import_files([bucket.url("traces/*.jsonl")], Table(f"{root}/experience"), engine=engine)
        assert summary.total("quarantined") == 2
        with monkeypatch.context() as patch:
            number = 1 if engine is None else 5
            patch.setattr("pairwright.pairs.build.num_slices", lambda *_, number=number, **__: number)
            build_pairs([Table(f"{root}/experience")], place(f"{root}/pairs"), OPTIONS, engine=engine)
        encode_source(place(f"{root}/pairs"), place(f"{root}/tokens"), options, engine=engine)
        found[name] = [
            digests(f"{root}/experience", names=False),
            digests(f"{root}/pairs"),
            digests(f"{root}/tokens", suffix=".parquet", names=False),
        ]
    assert [len(part) > 3 for part in found["local"]] == [True, False, True]
    assert found["ray"] == found["local"]
    assert found["killed"] == found["local"]
    left = [key for key in bucket.objects() if key not in bucket.visible()]
    assert not [key for key in left if "/pairs/" in key], "nothing is left of the builds"
    assert len(left) <= 2, "what a worker left that was killed is hidden"


def test_an_error_of_a_worker_at_an_address_is_one_line(equipped, bucket, s3):
    table = Table(bucket.url("experience"))
    bucket.put("a.jsonl", trace_lines())
    import_files([bucket.url("a.jsonl")], table)
    s3.failing = lambda method, path: "AccessDenied" if method in ("PUT", "POST") and "/rows." in path else None
    with pytest.raises(Exception, match=r"rows\..*\.arrow: access denied") as caught:
        build_pairs([table], place(bucket.url("pairs")), OPTIONS, engine=equipped)
    assert caught.value.exit_code == 1
    s3.failing = None
    assert bucket.objects("pairs") == []


def test_a_command_that_starts_a_cluster_hands_its_environment_on(bucket, tmp_path):
    bucket.put("traces/a.jsonl", trace_lines())
    done = command("import", bucket.url("traces"), "-o", bucket.url("experience"), "--engine", "ray", "--workers", 1)
    assert done.returncode == 0, done.stderr
    done = command("pairs", bucket.url("experience"), "-o", bucket.url("pairs"), "--engine", "ray")
    assert done.returncode == 0, done.stderr
    build_pairs([Table(bucket.url("experience"))], tmp_path / "pairs")
    assert digests(bucket.url("pairs")) == digests(tmp_path / "pairs")
