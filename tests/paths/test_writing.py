"""Files are written atomically: they have the new content or the old one, and no temporary files remain."""

import os
import signal
import stat
import subprocess
import sys

import fsspec
import pytest

from pairwright.errors import PlaceError, TableError
from pairwright.paths import append_synced, list_names, place, write_atomic, write_bytes, write_json


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_file_gets_its_name_when_its_content_is_complete(tmp_path):
    target = tmp_path / "new" / "a.txt"
    with write_atomic(target) as temporary:
        assert temporary.parent == target.parent
        temporary.write_bytes(b"half")
        assert not target.exists()
    assert target.read_bytes() == b"half"
    write_bytes(target, b"other")
    assert target.read_bytes() == b"other"
    write_json(target, {"a": [1]})
    assert target.read_text() == '{\n  "a": [\n    1\n  ]\n}\n'
    assert names(tmp_path) == ["a.txt", "new"]


def test_after_an_exception_the_old_file_stays_and_nothing_else(tmp_path):
    write_bytes(tmp_path / "a", b"old")
    with pytest.raises(KeyboardInterrupt), write_atomic(tmp_path / "a") as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError), write_atomic(tmp_path / "b") as temporary:
        temporary.mkdir()
        (temporary / "inner").write_bytes(b"half")
        raise RuntimeError
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_process_that_is_killed_leaves_the_old_file(tmp_path):
    write_bytes(tmp_path / "a", b"old")
    code = (
        "import os, signal, sys; from pathlib import Path; from pairwright.paths import write_atomic\n"
        "with write_atomic(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"old"


def test_content_is_synced_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: calls.append(("fsync", os.readlink(f"/proc/self/fd/{fd}"))) or fsync(fd)
    )
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append(("replace", str(paths[1]))) or replace(*paths))
    write_bytes(tmp_path / "a", b"content")
    assert [call for call, _ in calls] == ["fsync", "replace", "fsync"]
    assert calls[0][1].endswith(".tmp")
    assert calls[2][1] == str(tmp_path)
    calls.clear()
    write_bytes(tmp_path / "a", b"content", durable=False)
    assert [call for call, _ in calls] == ["replace"]
    calls.clear()
    append_synced(tmp_path / "a", b" and more")
    assert calls == [("fsync", str(tmp_path / "a"))]
    assert (tmp_path / "a").read_bytes() == b"content and more"


def test_a_folder_replaces_a_folder_and_a_failed_rename_brings_the_old_one_back(tmp_path, monkeypatch):
    for content in (b"old", b"new"):
        with write_atomic(tmp_path / "model") as temporary:
            temporary.mkdir()
            (temporary / content.decode()).write_bytes(content)
    assert names(tmp_path) == ["model", "new"]
    rename = type(tmp_path).rename

    def fails_for_new(path, target):
        if (path / "newer").exists():
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", fails_for_new)
    with pytest.raises(OSError, match="No space"), write_atomic(tmp_path / "model") as temporary:
        temporary.mkdir()
        (temporary / "newer").write_bytes(b"newer")
    assert names(tmp_path) == ["model", "new"]


def test_permissions_are_those_of_the_umask_or_of_the_writer(tmp_path):
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "a", b"")
        with write_atomic(tmp_path / "b") as temporary:
            temporary.write_bytes(b"")
            temporary.chmod(0o755)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o640, 0o755]


def test_an_error_of_the_system_can_be_one_of_ours(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TableError, match=r"file/a: .*; nothing was written"):
        write_bytes(tmp_path / "file" / "a", b"", error=TableError)
    with pytest.raises(OSError, match="file"):
        write_bytes(tmp_path / "file" / "a", b"")


def test_an_address_gets_a_file_in_one_put_or_not_at_all():
    system = fsspec.filesystem("memory")
    system.store.clear()
    target = place("memory://writing/a.json")
    with pytest.raises(RuntimeError), write_atomic(target) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert not target.exists()
    write_json(target, [])
    assert target.read_bytes() == b"[]\n"
    with pytest.raises(PlaceError, match=r"memory://writing/a\.json: while it was written"), write_atomic(target):
        raise OSError(28, "No space left on device")
    assert target.read_bytes() == b"[]\n"
    assert list_names(target.parent) == ["a.json"]
    system.store.clear()
