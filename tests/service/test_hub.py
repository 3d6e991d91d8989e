"""The hub endpoint: files, revisions, and what is refused. The real client is in test_real_clients.py."""

import base64
import hashlib
import json

import pytest
from asked_app import HEADER, application, commit, file_line, with_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairwright.service.api_errors import Refusal
from pairwright.service.hub.commit_body import Change, read_change
from pairwright.service.rows.blob_store import Blobs

FILES = "/v1/hf/datasets/default/pairs/resolve"
API = "/v1/hf/api/datasets/default/pairs"


@pytest.fixture
def client(tmp_path):
    with application(tmp_path, max_files=20) as (client, _):
        with_dataset(client)
        yield client


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_file_reads_back_at_every_revision(client):
    first = client.get(API).json()["sha"]
    second = commit(client, [HEADER, file_line("a/b.bin", b"\0\1\2")]).json()["commitOid"]
    third = commit(client, [HEADER, file_line("a/b.bin", b"new")]).json()["commitOid"]
    assert client.get(f"{FILES}/{second}/a/b.bin").content == b"\0\1\2"
    assert client.get(f"{FILES}/{third[:10]}/a/b.bin").content == b"new"
    assert code(client.get(f"{FILES}/{first}/a/b.bin")) == (404, "file_not_found")
    answer = client.head(f"{FILES}/main/a/b.bin")
    assert answer.headers["etag"] == f'"{hashlib.sha1(b"blob 3" + bytes(1) + b"new").hexdigest()}"'
    assert answer.headers["x-repo-commit"] == third
    assert answer.headers["content-length"] == "3"
    part = client.get(f"{FILES}/main/a/b.bin", headers={"range": "bytes=1-"})
    assert (part.status_code, part.content) == (206, b"ew")
    assert [item["id"] for item in client.get(f"{API}/commits/main").json()][:2] == [third, second]


def test_files_and_folders_are_taken_away(client):
    commit(client, [HEADER, *(file_line(path, b"x") for path in ("a/1", "a/2", "ab/3", "c"))])
    commit(
        client,
        [HEADER, {"key": "deletedFolder", "value": {"path": "a/"}}, {"key": "deletedFile", "value": {"path": "c"}}],
    )
    assert [item["path"] for item in client.get(f"{API}/tree/main", params={"recursive": True}).json()] == [
        "ab", "ab/3", "training", "training/training_file.jsonl",
    ]  # fmt: skip
    assert [item["path"] for item in client.get(f"{API}/tree/main").json()] == ["ab", "training"]
    assert [item["path"] for item in client.get(f"{API}/tree/main/ab").json()] == ["ab/3"]
    assert code(client.get(f"{API}/tree/main/a")) == (404, "file_not_found")


def test_the_same_commit_again_adds_none(client):
    lines = [HEADER, file_line("a", b"x")]
    assert commit(client, lines).json()["commitOid"] == commit(client, lines).json()["commitOid"]
    (found,) = client.post(f"{API}/preupload/main", json={"files": [{"path": "a", "size": 1, "sample": ""}]}).json()[
        "files"
    ]
    assert found["uploadMode"] == "regular"
    assert found["oid"] == hashlib.sha1(b"blob 1\0x").hexdigest()


def test_a_commit_on_another_parent_is_refused(client):
    before = client.get(API).json()["sha"]
    commit(client, [HEADER, file_line("a", b"x")])
    late = {"key": "header", "value": {"summary": "late", "parentCommit": before}}
    assert code(commit(client, [late, file_line("b", b"y")])) == (412, "parent_moved")


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "a//b", ".", "a/.", "", "a\\b", "a\nb", ".git/config", "x" * 300, "a\0b"],
)
def test_a_path_that_leaves_the_dataset_is_refused(client, path):
    assert code(commit(client, [HEADER, file_line(path, b"x")])) == (422, "bad_path")


@pytest.mark.parametrize("path", ["..%2f..%2fstate.sqlite3", "%2e%2e/%2e%2e/state.sqlite3", "a%00b", "%2fetc%2fpasswd"])
def test_a_path_that_leaves_the_dataset_reads_nothing(client, path):
    answer = client.get(f"{FILES}/main/{path}")
    assert answer.status_code in (400, 404, 422)
    assert b"SQLite" not in answer.content


def test_a_line_that_is_not_understood_is_refused_with_its_number(client):
    head = client.get(API).json()["sha"]
    for lines, expected in [
        ([file_line("a", b"x")], "no_commit_header"),
        ([HEADER, {"key": "lfsFile", "value": {"path": "a", "oid": "0"}}], "file_not_sent"),
        ([HEADER, {"key": "link", "value": {"path": "a"}}], "unknown_commit_line"),
        ([HEADER, {"key": "file", "value": {"path": "a"}}], "bad_commit_line"),
        ([HEADER, {"key": "file", "value": {"path": "a", "content": 3}}], "bad_commit_line"),
        ([HEADER, {"key": "file", "value": {"path": "a", "content": "abc"}}], "bad_base64"),
        ([HEADER, {"key": "file", "value": {"path": "a", "content": "ab c"}}], "bad_base64"),
        ([HEADER, {"key": "file", "value": {"path": "a", "content": "=AAA"}}], "bad_base64"),
        ([HEADER, {"key": "file", "value": {"path": "a", "content": "YQ==", "encoding": "gzip"}}], "bad_commit_line"),
        ([HEADER, 7], "bad_commit_line"),
        ([HEADER, file_line("a", b"x"), file_line("a/b", b"x")], "path_is_folder"),
        ([HEADER, *(file_line(f"f{n}", b"x") for n in range(21))], "too_many_files"),
    ]:
        answer = commit(client, lines)
        assert answer.json()["code"] == expected, answer.text
        assert answer.status_code in (413, 422)
    assert client.get(API).json()["sha"] == head


def test_a_repository_that_is_there_is_refused_with_its_url(client):
    answer = client.post(
        "/v1/hf/api/repos/create", json={"name": "pairs", "organization": "default", "type": "dataset"}
    )
    assert code(answer) == (409, "repository_exists")
    assert answer.json()["url"] == "datasets/default/pairs"
    body = {"name": "x", "organization": "nobody", "type": "dataset"}
    assert code(client.post("/v1/hf/api/repos/create", json=body)) == (404, "namespace_not_found")
    assert code(client.post("/v1/hf/api/repos/create", json={"name": "x", "type": "model"})) == (422, "only_datasets")
    assert code(client.get("/v1/hf/api/datasets/default/none")) == (404, "repository_not_found")
    assert client.get("/v1/hf/api/datasets/default/none").headers["x-error-code"] == "RepoNotFound"


def test_a_deleted_repository_is_gone(client):
    body = {"name": "pairs", "organization": "default", "type": "dataset"}
    assert client.request("DELETE", "/v1/hf/api/repos/delete", json=body).status_code == 200
    assert code(client.get(API)) == (404, "repository_not_found")
    with_dataset(client)
    assert len(client.get(f"{API}/commits/main").json()) == 2


def test_paths_are_looked_up(client):
    found = client.post(f"{API}/paths-info/main", data={"paths": ["training", "none", "training/training_file.jsonl"]})
    assert [(item["path"], item["type"]) for item in found.json()] == [
        ("training", "directory"), ("training/training_file.jsonl", "file"),
    ]  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(st.sampled_from(["a", "b/c", "b/d"]), st.binary(max_size=40)), max_size=6))
def test_what_goes_into_a_commit_comes_out(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("commit")
    body = folder / "body"
    body.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *(file_line(*file) for file in files)]))
    blobs = Blobs(folder)
    change = read_change(body, blobs, max_files=10, held=[])
    assert {path: blobs.path(blob.sha256).read_bytes() for path, blob in change.files.items()} == dict(files)
    assert change.apply({}) == dict(sorted(change.files.items()))


def test_a_file_is_decoded_in_pieces_without_being_held_whole(tmp_path, peak_memory):
    content = bytes(range(256)) * 2**17  # 32 MB
    encoded = base64.b64encode(content).decode()
    body = tmp_path / "body"
    with open(body, "w") as file:
        file.write('{"key": "header", "value": {"summary": "large"}}\n{"key": "file", "value": {"content": "')
        file.write(encoded)
        file.write('", "path": "large.bin", "encoding": "base64"}}\n')
    del encoded
    expected = hashlib.sha256(content).hexdigest()
    del content
    blobs = Blobs(tmp_path)
    with peak_memory(limit=24 * 2**20):
        change = read_change(body, blobs, max_files=1, held=[])
    assert change.files["large.bin"].sha256 == expected


def test_escaped_base64_is_refused(tmp_path):
    body = tmp_path / "body"
    body.write_text('{"key":"header","value":{}}\n{"key":"file","value":{"content":"\\/\\/\\/\\/","path":"a"}}\n')
    with pytest.raises(Refusal, match="line 2: content: not base64"):
        read_change(body, Blobs(tmp_path), max_files=1, held=[])


def test_a_change_takes_away_before_it_puts():
    change = Change(files={}, deleted=["a"], deleted_folders=["b"])
    assert change.apply({"a": 1, "b/c": 2, "bc": 3}) == {"bc": 3}


def test_a_large_file_is_named_only_by_the_repository_that_it_was_sent_to(client):
    content = b"a shard of a dataset"
    sha256 = hashlib.sha256(content).hexdigest()
    line = {"key": "lfsFile", "value": {"path": "data/train-0.parquet", "algo": "sha256", "oid": sha256, "size": 20}}
    assert commit(client, [HEADER, line]).json()["code"] == "file_not_sent"
    batch = {"operation": "upload", "objects": [{"oid": sha256, "size": len(content)}]}
    path = "/v1/hf/datasets/default/pairs.git/info/lfs/objects/batch"
    address = client.post(path, json=batch).json()["objects"][0]["actions"]["upload"]["href"]
    assert client.put(address, content=b"another file of 20 b").json()["code"] == "other_content"
    assert client.put(address.replace("size=20", "size=21"), content=content).json()["code"] == "bad_signature"
    assert client.put(address, content=content).status_code == 200
    assert "actions" not in client.post(path, json=batch).json()["objects"][0]
    with_dataset(client, "default/other")
    assert commit(client, [HEADER, line], "default/other").json()["code"] == "file_not_sent"
    assert commit(client, [HEADER, line]).status_code == 200
    got = client.get("/v1/hf/datasets/default/pairs/resolve/main/data/train-0.parquet")
    assert got.content == content
