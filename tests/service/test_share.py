"""`push` and `pull` through the hub endpoint of our own service, with the real huggingface_hub client."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from service_process import Service

from pairwright import EID, Experience, Message, Pairs, Table, pull, push
from pairwright.errors import ConfigError, TableError
from pairwright.export.hub_card import make_card
from pairwright.export.hub_dataset import HubError, check_manifest, describe_folder, pull_files
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.decisions import ExclusionFile
from pairwright.store.conditions import parse_where
from pairwright.store.exporting import filter_table

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
PAIR_FILES = ("pairs.parquet", "funnel.json", "outcomes.parquet")


def make_table(folder: Path, num_tasks: int = 3) -> Path:
    for run in range(3):  # a part each
        with Table(folder) as table:
            table.append(
                Experience(
                    eid=EID("b", task, run), kind="single_turn", prompt=[Message("user", f"{task}?")],
                    completion=[Message("assistant", f"answer {run} `|<b>")], reward=run / 2, model_version="<script>|[x](y)",
                )
                for task in range(num_tasks)
            )  # fmt: skip
    return folder


def make_pairs(table: Path, folder: Path) -> dict[str, bytes]:
    build_pairs([Table(table)], folder, PairOptions(where="task != '`'"))
    return {name: (folder / name).read_bytes() for name in PAIR_FILES}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    data = tmp_path_factory.mktemp("service") / "data"
    create = [sys.executable, "-m", "pairwright.cli", "serve", "token", "create", "--data", str(data)]
    done = subprocess.run([*create, "--name", "a", "--scope", "me"], capture_output=True, text=True, check=True)
    token = done.stdout.strip()
    command = [sys.executable, "-m", "pairwright.cli", "serve", "jobs", "--data", str(data), "--port", "0"]
    with Service(data, command=command, token=token) as running:
        running.http.post("/v1/namespaces", json={"id": "me"}).raise_for_status()
        running.token = token
        yield running


@pytest.fixture
def hub(service, tmp_path, monkeypatch):
    """The client of the service, also for push and pull, configured as by the environment of a new process."""
    values = {"ENDPOINT": f"{service.url}/v1/hf", "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    values["HUGGINGFACE_CO_URL_TEMPLATE"] = values["ENDPOINT"] + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", service.token)
    return huggingface_hub.HfApi()


def read_card(hub, repo, folder):
    return Path(hub.hf_hub_download(repo, "README.md", repo_type="dataset", local_dir=folder)).read_text()


def test_a_table_that_was_pulled_gives_the_same_pairs_byte_for_byte(hub, tmp_path):
    table = make_table(tmp_path / "experience")
    ExclusionFile(table).exclude("ada", next(iter(Table(table))).eid.uid, "odd")
    pushed = push(table, "me/runs", private=True, license="cc-by-4.0")
    assert (pushed.kind, pushed.rows, pushed.changed) == ("experience", 9, True)
    again = push(table, "me/runs")
    assert (again.changed, again.revision) == (False, pushed.revision)
    assert len(pull("me/runs", tmp_path / "pulled")) == 9
    assert describe_folder(tmp_path / "pulled") == describe_folder(table)
    before, after = make_pairs(table, tmp_path / "one"), make_pairs(tmp_path / "pulled", tmp_path / "two")
    assert before == after
    assert b"excluded by hand" in after["funnel.json"]


def test_pairs_come_back_with_their_funnel_at_every_revision(hub, tmp_path):
    table = make_table(tmp_path / "experience")
    first = make_pairs(table, tmp_path / "pairs")
    old = Pairs(tmp_path / "pairs").push("me/pairs", license="apache-2.0").revision
    text = read_card(hub, "me/pairs", tmp_path / "hub")
    digest = hashlib.sha256(first["pairs.parquet"]).hexdigest()
    assert all(
        part in text for part in ("license: apache-2.0", "| experiences | in | 9 |", digest, "path: pairs.parquet")
    )
    # A person adds to the card; it stays, and so does the licence.
    own = text.replace("<!-- pairwright:", "# Ours\n\n<!-- pairwright:").encode()
    hub.upload_file(path_or_fileobj=own, path_in_repo="README.md", repo_id="me/pairs", repo_type="dataset")
    build_pairs([Table(table)], tmp_path / "pairs", PairOptions(strategy="best-worst"))
    push(tmp_path / "pairs", "me/pairs")
    newer = read_card(hub, "me/pairs", tmp_path / "hub")
    assert ("# Ours" in newer, "license: apache-2.0" in newer, newer.count("## Funnel")) == (True, True, 1)
    assert len(pull("me/pairs", tmp_path / "new")) == 3
    pull("me/pairs", tmp_path / "old", revision=old)
    assert {name: (tmp_path / "old" / name).read_bytes() for name in PAIR_FILES} == first
    assert (tmp_path / "new" / "pairs.parquet").read_bytes() == (tmp_path / "pairs" / "pairs.parquet").read_bytes()
    assert not (tmp_path / "new" / "lineage.json").exists()
    assert not pull_files("me/pairs", tmp_path / "new").changed
    (tmp_path / "new" / "funnel.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not empty"):
        pull("me/pairs", tmp_path / "new")


def test_a_branch_of_its_own_and_parts_that_are_gone(hub, tmp_path):
    table = make_table(tmp_path / "experience")
    Table(table).push("me/branches", revision="next")
    names = set(hub.list_repo_files("me/branches", repo_type="dataset", revision="next"))
    assert {"README.md", "pairwright.json", "table.json"} < names
    assert hub.list_repo_files("me/branches", repo_type="dataset", revision="main") == []
    filter_table(Table(table), tmp_path / "small", parse_where("run = 0"))
    push(tmp_path / "small", "me/branches", revision="next")
    parts = {
        name for name in hub.list_repo_files("me/branches", repo_type="dataset", revision="next") if name[0] == "0"
    }
    assert parts == {path.name for path in (tmp_path / "small").glob("*.parquet")}
    with pytest.raises(TableError, match="experience filter"):
        Table(table).filter("run = 0").push("me/branches")


def test_a_pull_that_was_cut_off_goes_on(hub, tmp_path):
    table = make_table(tmp_path / "experience")
    push(table, "me/cut")
    staging = tmp_path / "pulled" / ".pulling"
    staging.mkdir(parents=True)
    part = next(table.glob("*.parquet"))
    (staging / part.name).write_bytes(part.read_bytes())
    (staging / "table.json").write_bytes(b"torn")
    pull("me/cut", tmp_path / "pulled")
    assert describe_folder(tmp_path / "pulled") == describe_folder(table)
    assert sorted(path.name for path in (tmp_path / "pulled").iterdir()) == sorted(describe_folder(table).files)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../evil": {"size": 4, "sha256": "0" * 64}}},
        {"files": {"/tmp/evil": {"size": 4, "sha256": "0" * 64}}},
        {"files": {".bashrc": {"size": 4, "sha256": "0" * 64}}},
        {"files": {"a/b.parquet": {"size": 4, "sha256": "0" * 64}}},
        {"files": {"funnel.json": {"size": 4, "sha256": "0" * 64}}},
        {"files": {}},
        {"version": 99},
        {"kind": "wheel"},
        {"more": 1},
        {"rows": "many"},
    ],
)  # fmt: skip
def test_a_hostile_manifest_is_refused(change):
    manifest = {"kind": "experience", "rows": 1, "files": {"table.json": {"size": 1, "sha256": ""}}, "version": 1}
    files = manifest["files"] | change.pop("files") if change.get("files") else change.pop("files", manifest["files"])
    with pytest.raises(HubError):
        check_manifest("me/x", json.dumps(manifest | change | {"files": files}).encode())


def test_files_that_are_not_those_of_the_manifest_are_not_kept(hub, tmp_path):
    table = make_table(tmp_path / "experience")
    push(table, "me/forged")
    forged = (table / "table.json").read_bytes().replace(b"1", b"2")
    arguments = {"path_in_repo": "table.json", "repo_id": "me/forged", "repo_type": "dataset"}
    hub.upload_file(path_or_fileobj=forged, **arguments)
    with pytest.raises(HubError, match="SHA-256 is not that"):
        pull("me/forged", tmp_path / "pulled")
    assert not (tmp_path / "pulled" / "table.json").exists()
    hub.upload_file(path_or_fileobj=forged + bytes(1000), **arguments)
    with pytest.raises(HubError, match=r"bytes, and pairwright.json says"):
        pull("me/forged", tmp_path / "pulled")


def test_what_goes_wrong_says_what_to_do(hub, tmp_path, monkeypatch):
    table = make_table(tmp_path / "experience")
    with pytest.raises(HubError, match="no such dataset for you"):
        pull("me/nothing", tmp_path / "a")
    with pytest.raises(HubError, match="neither a pairs table"):
        push(tmp_path, "me/x")
    with pytest.raises(ConfigError, match="identifier of the Hub"):
        push(table, "me/x", license="a: b")
    push(table, "me/there")
    with pytest.raises(HubError, match="no such revision"):
        pull("me/there", tmp_path / "a", revision="zzz")
    hub.upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="me/x", repo_type="dataset")
    with pytest.raises(HubError, match=r"has no pairwright.json"):
        pull("me/x", tmp_path / "a")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="log in"):
        push(table, "me/x")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        pull("me/x", tmp_path / "a")


def test_the_commands_print_what_they_did(hub, tmp_path):
    from typer.testing import CliRunner

    from pairwright.cli import app

    make_table(tmp_path / "experience")
    words = ["push", str(tmp_path / "experience"), "me/command", "--json"]
    assert json.loads(CliRunner().invoke(app, words).stdout)["changed"]
    assert "were there already" in CliRunner().invoke(app, words).stderr
    words = ["pull", "me/command", "-o", str(tmp_path / "pulled"), "--json"]
    assert json.loads(CliRunner().invoke(app, words).stdout)["rows"] == 9


def test_text_of_traces_means_nothing_in_a_card(tmp_path):
    table = make_table(tmp_path / "experience")
    card = make_card(table, {"kind": "experience", "rows": 9, "files": {}}).decode()
    assert "<script>" not in card
    assert "&lt;script&gt;\\|\\[x\\](y)" in card
    make_pairs(table, tmp_path / "pairs")
    card = make_card(tmp_path / "pairs", {"kind": "pairs", "rows": 9, "files": {}}).decode()
    assert "task != '\\\\u0060'" in card.replace("\\u0060", "\\\\u0060")
    assert card.count("```") == 2
