"""Commands with addresses, as a user meets them: results, one line for an error, no secret anywhere."""

import json
import re

import pytest

from pairwright.cli import main
from pairwright.errors import PairwrightError
from pairwright.paths import list_names, place
from pairwright.tokens.tokenizer import ChatTokenizer
from paths.made_traces import command, digests, trace_lines
from training.made_runs import make_model, make_tokenizer

SECRETS = ("testing-secret", "in-the-address")


@pytest.fixture
def run(capsys, monkeypatch):
    """Exit code, stdout and stderr of a command in this process."""

    def told(*words):
        monkeypatch.setattr("sys.argv", ["pairwright", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        assert not any(secret in found.out + found.err for secret in SECRETS)
        return ended.value.code, found.out, found.err

    return told


def with_secrets(url):
    """The address with credentials in it, and the endpoint's region."""
    return re.sub(r"^s3://", "s3://key-in-the-address:secret-in-the-address@", url) + "?region=us-east-1"


def test_the_quickstart_on_s3_is_that_of_a_local_folder(run, bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tokenizer(tmp_path / "tokenizer")
    bucket.put("traces/a.jsonl", trace_lines())
    for root in ("local-run", bucket.url("runs/x")):
        steps = [
            ("import", bucket.url("traces/*.jsonl"), "-o", f"{root}/experience"),
            ("experience", "stats", f"{root}/experience"),
            ("experience", "head", f"{root}/experience", "-n", 2),
            ("export", f"{root}/experience", "-o", f"{root}/all.jsonl"),
            ("pairs", f"{root}/experience", "-o", f"{root}/pairs", "--length-balance", 0.5),
            ("pairs", "stats", f"{root}/pairs"),
            ("export", f"{root}/pairs", "--to", "trl", "-o", f"{root}/trl.jsonl"),
            ("tokens", f"{root}/pairs", "--tokenizer", "tokenizer", "-o", f"{root}/tokens", "--workers", 1),
            ("tokens", "show", f"{root}/tokens", "--tokenizer", "tokenizer", "--json"),
        ]
        outputs = []
        for step in steps:
            code, out, err = run(*step)
            assert code == 0, err
            outputs.append(out.replace(root, "ROOT"))
        if root == "local-run":
            expected = outputs
    assert outputs == expected
    assert digests(bucket.url("runs/x/pairs")) == digests(tmp_path / "local-run" / "pairs")
    for name in ("trl.jsonl", "all.jsonl"):
        assert bucket.get(f"runs/x/{name}") == (tmp_path / "local-run" / name).read_bytes()
    code, _, err = run("export", f"{root}/pairs", "--to", "trl", "-o", f"{root}/trl.jsonl")
    assert (code, "exists: replace it with --overwrite" in err) == (1, True)
    code, _, err = run("export", f"{root}/pairs", "--to", "hf", "-o", f"{root}/hf")
    assert (code, "export here, then copy it" in err) == (3, True)


def test_credentials_in_an_address_work_and_are_written_nowhere(run, bucket, tmp_path):
    make_tokenizer(tmp_path / "tokenizer")
    bucket.put("traces/a.jsonl", trace_lines())
    root = bucket.url("runs/x")
    for words in (
        ("import", with_secrets(bucket.url("traces/a.jsonl")), "-o", with_secrets(f"{root}/experience")),
        ("pairs", with_secrets(f"{root}/experience"), "-o", with_secrets(f"{root}/pairs")),
        ("tokens", with_secrets(f"{root}/pairs"), "--tokenizer", tmp_path / "tokenizer", "--workers", 1,
         "--experience", with_secrets(f"{root}/experience"), "-o", with_secrets(f"{root}/tokens")),
        ("export", with_secrets(f"{root}/pairs"), "--to", "parquet", "-o", with_secrets(f"{root}/pairs.parquet")),
    ):  # fmt: skip
        code, _, err = run(*words)
        assert code == 0, err
    written = bucket.objects("runs")
    assert len(written) > 8
    for key in written:
        assert not any(secret.encode() in bucket.get(key) for secret in SECRETS), key
    assert json.loads(bucket.get("runs/x/tokens/manifest.json"))["source"] == f"{root}/pairs"
    code, _, err = run("pairs", with_secrets(bucket.url("none")), "-o", tmp_path / "pairs")
    assert (code, err.count("\n"), f"{bucket.url('none')}: no experience table here" in err) == (1, 1, True)


def test_a_bucket_that_is_missing_and_access_that_is_denied_are_one_line(run, bucket, s3, tmp_path):
    missing = "s3://no-such-bucket-anywhere/x"
    for words in (
        ("import", missing, "-o", tmp_path / "a"),
        ("import", f"{missing}/*.jsonl", "-o", tmp_path / "b"),
        ("import", tmp_path, "-o", missing),
        ("pairs", missing, "-o", tmp_path / "c"),
        ("experience", "stats", missing),
    ):
        code, _, err = run(*words)
        assert (code, err.count("\n")) == (1, 1), err
        assert "s3://no-such-bucket-anywhere" in err
        assert "no such bucket" in err
    s3.failing = lambda method, path: "AccessDenied"
    for words in (("import", bucket.url("a.jsonl"), "-o", tmp_path / "d"), ("pairs", "stats", bucket.url("pairs"))):
        code, _, err = run(*words)
        assert (code, err.count("\n"), "access denied" in err) == (1, 1, True), err


@pytest.mark.slow
def test_no_network_is_one_line(tmp_path):
    done = command("import", "s3://bucket/a.jsonl", "-o", tmp_path / "x", AWS_ENDPOINT_URL="http://127.0.0.1:1",
                   AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "s3://bucket/a.jsonl: no connection: check the network and AWS_ENDPOINT_URL" in done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("report", "s3://k:in-the-address@bucket/run"), "run"),
        (("collect", "s3://bucket/c.yaml"), "config"),
        (("record", "--upstream", "http://x", "-o", "s3://bucket/x"), "output"),
        (("tokens", "a", "--tokenizer", "s3://bucket/tok", "-o", "b"), "tokenizer"),
        (("import", "a", "-o", "b", "--scores", "s3://bucket/scores.csv"), "scores"),
        (("train", "--pairs", "a", "--model", "s3://bucket/model", "-o", "b"), "model"),
        (("serve", "model", "s3://bucket/model"), "checkpoint"),
        (("run", "s3://bucket/config.yaml"), "config"),
    ],
)
def test_a_command_that_takes_no_address_says_so_and_what_to_do(run, words, name):
    code, _, err = run(*words)
    assert (code, err.count("\n")) == (3, 1), err
    assert re.search(
        rf"^pairwright: s3://bucket/\S+: an address, but `pairwright .*` takes its {name} only on this machine", err
    )
    assert "copy it to a folder here" in err


def test_a_configuration_names_addresses_and_is_kept_without_their_credentials(run, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "sources: {paths: ['s3://key:in-the-address@bucket/a/*.jsonl', traces/]}\n"
        "pairs: {teachers: ['s3://key:in-the-address@bucket/t']}\n"
    )
    code, out, _ = run("config", "show", config)
    assert code == 0
    assert "s3://bucket/a/*.jsonl" in out
    assert "in-the-address" not in out
    code, _, err = run("tokens", "show", tmp_path, "--tokenizer", "s3://bucket/x")
    assert (code, "takes its tokenizer only on this machine" in err) == (3, True)
    with pytest.raises(
        PairwrightError, match=r"^s3://bucket/x: an address, but a tokenizer is read from a local folder: copy it here"
    ):
        ChatTokenizer.from_folder("s3://key:in-the-address@bucket/x")


def test_votes_at_an_address_are_refused_on_the_command_line_and_in_a_configuration(run, tmp_path):
    reason = "an address, but votes are read on this machine only: copy the file here"
    code, _, err = run("pairs", "a", "-o", "b", "--votes", "s3://bucket/votes.csv")
    assert (code, err) == (3, f"pairwright: --votes: {reason}\n")
    config = tmp_path / "config.yaml"
    config.write_text("pairs: {votes: s3://bucket/votes.csv}\n")
    for words in (("config", "show", config), ("pairs", "x", "-o", "y", "--config", config)):
        code, _, err = run(*words)
        assert (code, f"pairs.votes: {reason}" in err) == (3, True), err


@pytest.mark.slow
def test_training_fetches_pairs_from_s3_and_gives_the_weights_of_local_ones(run, bucket, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from training.made_runs import make_pairs

    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    make_model(tmp_path / "model")
    make_pairs(tmp_path / "pairs", 8)
    for path in (tmp_path / "pairs").iterdir():
        bucket.put(f"pairs/{path.name}", path.read_bytes())
    for name, pairs in (("local", tmp_path / "pairs"), ("remote", bucket.url("pairs"))):
        code, _, err = run("train", "--pairs", pairs, "--model", tmp_path / "model", "-o", tmp_path / name,
                           "--epochs", 1, "--batch-size", 4, "--set", "train.threads=1")  # fmt: skip
        assert code == 0, err
    assert f"fetching {bucket.url('pairs')} to this machine" in err
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("local", "remote")]
    assert weights[1] == weights[0]
    assert list((tmp_path / "scratch").glob("pairwright-*")) == []
    assert list_names(place(bucket.url("pairs"))) == ["pairs.parquet"]
