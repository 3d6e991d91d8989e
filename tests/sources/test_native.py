"""The C of sources/native: no warning of the compiler, and nothing beyond Python's limited API."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "src" / "pairwright" / "sources" / "native"
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
ALLOWED = ["-Wno-missing-field-initializers", "-Wno-sign-conversion"]


def can_compile() -> bool:
    """Whether there is a C compiler, and what a module of Python needs beside it."""
    return shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()


def test_it_compiles_without_warnings():
    if not can_compile():
        pytest.skip("there is no C compiler, or Python's headers are not installed")
    include = sysconfig.get_path("include")
    command = ["cc", "-fsyntax-only", *FLAGS, *ALLOWED, "-isystem", include, str(NATIVE / "plain_rollout.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_limited_api_is_used():
    text = (NATIVE / "plain_rollout.c").read_text()
    assert text.index("#define Py_LIMITED_API 0x030b0000") < text.index("#include <Python.h>")
    for header in NATIVE.glob("*.h"):
        assert "Py_LIMITED_API" not in header.read_text()
