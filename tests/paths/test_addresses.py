"""Addresses: parsing, display, listing, and file systems of fsspec."""

import gzip
import pickle

import fsspec
import pytest

from pairs.made_tables import candidate
from pairwright import Table
from pairwright.errors import PlaceError, SourceError, TableError
from pairwright.pairs import build_pairs
from pairwright.paths import list_names, local_folder, place, scratch, size_of, stage_file, stamp_of
from pairwright.paths.addresses import Remote
from pairwright.sources.files import expand_paths
from pairwright.store.importing import import_files
from paths.made_traces import digests, trace_lines


@pytest.fixture
def memory():
    """fsspec's file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def test_a_text_with_a_scheme_is_an_address_and_any_other_is_a_path(tmp_path):
    assert place("s3://bucket/a//b/") == Remote("s3", "bucket", "a/b")
    assert place(tmp_path) is tmp_path
    assert place("a:b/c").name == "c"
    assert place(f"file://{tmp_path}/x%20y") == tmp_path / "x y"
    there = place("s3://bucket/a/b.tar.gz")
    assert (there.name, there.stem, there.suffix, str(there.parent)) == ("b.tar.gz", "b.tar", ".gz", "s3://bucket/a")
    assert str(there.with_suffix(".zst")) == "s3://bucket/a/b.tar.zst"
    with pytest.raises(PlaceError, match="expected an address such as s3://bucket/folder"):
        place("s3:///a")


def test_what_may_be_a_secret_is_not_shown_but_goes_along():
    there = place("s3://mykey:secret@bucket/a?region=eu-west-1&session_token=hidden") / "b"
    assert str(there) == "s3://bucket/a/b"
    assert not any(word in repr(there) for word in ("mykey", "secret", "hidden", "eu-west"))
    assert pickle.loads(pickle.dumps(there)).login == "mykey:secret"
    assert there.query == "region=eu-west-1&session_token=hidden"
    assert (
        str(place("abfs://container@account.dfs.core.windows.net/a"))
        == "abfs://container@account.dfs.core.windows.net/a"
    )


def test_errors_name_the_address_and_no_secret(monkeypatch):
    with pytest.raises(PlaceError, match=r"^s3://bucket: .*query parameter") as caught:
        place("s3://mykey:mysecret@bucket/a?mytoken=mysecret").exists()
    assert "mysecret" not in str(caught.value)
    assert "mykey" not in str(caught.value)
    with pytest.raises(PlaceError, match=r"^nosuch://host: no file system for 'nosuch' here") as caught:
        place("nosuch://me:mysecret@host/a").exists()
    assert "mysecret" not in str(caught.value)


def test_a_file_is_put_whole_read_renamed_and_deleted(memory, tmp_path):
    there = place("memory://box/a/b.txt")
    assert not there.exists()
    with stage_file(there) as written:
        written.write_bytes(b"one\ntwo\n")
        assert not there.exists()
    assert there.is_file()
    assert there.parent.is_dir()
    assert there.read_bytes() == b"one\ntwo\n"
    assert size_of(there) == 8
    assert stamp_of(there)[0] == 8
    with there.open() as file:
        assert file.readline() == b"one\n"
        assert file.seek(0) == 0
        assert file.read() == b"one\ntwo\n"
    there.rename(there.parent / "c.txt")
    assert list_names(there.parent) == ["c.txt"]
    with local_folder(there.parent) as folder:
        assert (folder / "c.txt").read_bytes() == b"one\ntwo\n"
    assert not folder.exists()
    (there.parent / "c.txt").unlink()
    with pytest.raises(PlaceError, match=r"memory://box/a/c\.txt: no such file"):
        (there.parent / "c.txt").unlink()
    (there.parent / "c.txt").unlink(missing_ok=True)
    there.parent.remove_tree()
    there.parent.remove_tree()
    assert there.parent.entries() == []


def test_a_file_whose_writing_fails_does_not_appear(memory):
    there = place("memory://box/a.txt")
    with pytest.raises(RuntimeError), stage_file(there) as written:
        written.write_bytes(b"half")
        raise RuntimeError
    assert not there.exists()
    with pytest.raises(PlaceError, match=r"memory://box/a\.txt: while it was written"), stage_file(there) as written:
        (written.parent / "no" / "folder").write_bytes(b"")


def test_scratch_is_gone_afterwards(tmp_path):
    with pytest.raises(RuntimeError), scratch(tmp_path) as folder:
        assert folder.parent == tmp_path
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


NAMES = [
    "t/b.jsonl", "t/a.jsonl", "t/.hidden.jsonl", "t/z/x.jsonl", "t/z/.h/x.jsonl", "t/c/d/e.jsonl", "t/c/x.json",
    "t/quarantine.jsonl", "t/c/table.json", "other.jsonl",
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["t", "t/", "t/a.jsonl", "t/*.jsonl", "t/*", "t/**", "t/**/*.jsonl", "t/*/x.*", "t/[ab].jsonl", "t/?.jsonl", "*",
     "t/.hidden.jsonl", "t/.h*", "t/c/../a.jsonl"],
)  # fmt: skip
def test_files_folders_and_globs_are_found_as_those_of_a_local_folder(memory, tmp_path, monkeypatch, pattern):
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
        memory.pipe(f"/box/{name}", b"{}")
    if ".." in pattern:
        with pytest.raises(SourceError):
            expand_paths([f"memory://box/{pattern}"])
        return
    monkeypatch.chdir(tmp_path)
    local = [str(path) for path in expand_paths([pattern])]
    assert local
    found = expand_paths([f"memory://box/{pattern}"])
    assert [str(path) for path in found] == [f"memory://box/{name}" for name in local]
    assert all(path.known_size == 2 for path in found if pattern not in ("t/a.jsonl", "t/.hidden.jsonl"))
    assert expand_paths(["memory://box/t", f"memory://box/{pattern}"])[0].key == "t/a.jsonl"


def test_a_glob_without_a_match_is_an_error(memory):
    with pytest.raises(SourceError, match=r"memory://box/\*\.jsonl: no file there"):
        expand_paths(["memory://box/*.jsonl"])


def test_the_stages_run_on_a_file_system_of_fsspec(memory, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(trace_lines())
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(trace_lines(24, 30)))
    for root in (str(tmp_path), "memory://box"):
        summary = import_files([str(tmp_path / "*.jsonl*")], Table(f"{root}/experience"))
        assert summary.total("quarantined") == 2
        build_pairs([Table(f"{root}/experience", create=False)], place(f"{root}/pairs"))
    for name in ("experience", "pairs"):
        local = digests(tmp_path / name, names=name == "pairs")
        assert len(local) > 2
        assert digests(f"memory://box/{name}", names=name == "pairs") == local


def test_appending_to_a_table_at_an_address_is_refused(memory):
    table = Table("memory://box/experience")
    with pytest.raises(TableError, match="appends need a journal, which an address does not support"):
        table.append([candidate(1.0)])
    assert table.compact() == 0
    memory.pipe("/box/full/x.txt", b"")
    with pytest.raises(TableError, match="not empty and not an experience table"):
        Table("memory://box/full")
    with pytest.raises(TableError, match=r"memory://box/none: no experience table here"):
        Table("memory://box/none", create=False)
