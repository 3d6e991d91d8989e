"""Errors of the operating system are one line with a suggested fix in every command: no traceback, exit code 1 or 3."""

import errno
import os
import resource
import signal
import subprocess
import sys

import pytest
from typer.main import get_command

from flow.test_flow import written
from models.test_convert_gguf import small_model, write_gguf
from pairwright.cli.guards import describe_os_error
from pairwright.cli.main import app, main
from pairwright.config.sections import TokensConfig
from pairwright.pairs import PairOptions, build_pairs
from pairwright.store.table import Table
from pairwright.tokens.stage.stage import encode_source
from training.made_runs import make_model, make_runs

# Every command, with OUT for its output and IN for its input; words of the fixture are valid inputs.
# "-" where a command does not write, or reads nothing.
WRITES = {
    "run": "CONFIG --output OUT",
    "demo": "--output OUT",
    "import": "TRACES -o OUT",
    "collect": "CONFIG -o OUT",
    "record": "--upstream http://127.0.0.1:9 -o OUT",
    "teach": "RUNS -o OUT --teacher a=http://127.0.0.1:9#m",
    "score": "-",
    "export": "PAIRS --to trl -o OUT",
    "push": "-",
    "pull": "-",
    "init": "OUT",
    "model convert": "GGUF -o OUT",
    "model fetch": "no/model -o OUT",
    "model export": "MODEL --to gguf:f16 -o OUT",
    "train": "--pairs PAIRS --model MODEL -o OUT",
    "report": "RUN -o OUT",
    "view": "RUNS --export OUT",
    "explain": "-",
    "doctor": "-",
    "advise": "-",
    "experience corrections": "-",
    "experience stats": "-",
    "experience head": "-",
    "experience filter": "RUNS --where reward>=0 -o OUT",
    "pairs build": "RUNS -o OUT",
    "pairs stats": "-",
    "pairs lint": "-",
    "pairs votes": "-",
    "tokens build": "PAIRS --tokenizer MODEL -o OUT",
    "tokens show": "-",
    "tokens check": "-",
    "tokens audit": "-",
    "compare": "-",
    "evaluate compare": "RUNS RUNS -o OUT",
    "evaluate run": "CONFIG --before MODEL --after MODEL -o OUT",
    "jobs submit": "-o OUT --model MODEL --pairs PAIRS",
    "jobs list": "-",
    "jobs show": "-",
    "jobs attach": "-",
    "jobs logs": "-",
    "jobs cancel": "-",
    "jobs deploy": "-",
    "serve jobs": "--data OUT",
    "serve model": "-",
    "serve targets add": "name MODEL --data OUT",
    "serve targets list": "-",
    "serve targets remove": "-",
    "serve token create": "--data OUT --name a --scope read",
    "serve token list": "-",
    "serve token revoke": "-",
    "config schema": "-",
    "config validate": "-",
    "config show": "-",
    "config from-nat": "CONFIG -o OUT",
}
READS = {
    "run": "IN",
    "demo": "-",
    "import": "IN -o NEW",
    "collect": "IN -o NEW",
    "record": "-",
    "teach": "IN -o NEW --teacher a=http://127.0.0.1:9#m",
    "score": "IN --with programs",
    "export": "IN --to trl -o NEW",
    "push": "IN me/table",
    "pull": "-",
    "init": "-",
    "model convert": "IN -o NEW",
    "model fetch": "-",
    "model export": "IN --to gguf:f16 -o NEW",
    "train": "--pairs IN --model MODEL -o NEW",
    "report": "IN -o NEW",
    "view": "IN --export NEW",
    "explain": "IN",
    "doctor": "-",
    "advise": "IN",
    "experience corrections": "IN --from x -o NEW",
    "experience stats": "IN",
    "experience head": "IN",
    "experience filter": "IN --where reward>=0 -o NEW",
    "pairs build": "IN -o NEW",
    "pairs stats": "IN",
    "pairs lint": "IN",
    "pairs votes": "IN RUNS",
    "tokens build": "IN --tokenizer MODEL -o NEW",
    "tokens show": "IN --tokenizer MODEL",
    "tokens check": "--tokenizer IN",
    "tokens audit": "IN --tokenizer MODEL",
    "compare": "IN --recipes IN -o NEW",
    "evaluate compare": "IN IN",
    "evaluate run": "IN --before MODEL --after MODEL -o NEW",
    "jobs submit": "-o NEW --model MODEL --pairs IN",
    "jobs list": "-",
    "jobs show": "IN",
    "jobs attach": "IN",
    "jobs logs": "IN",
    "jobs cancel": "IN",
    "jobs deploy": "IN",
    "serve jobs": "-",
    "serve model": "IN",
    "serve targets add": "name IN --data NEW",
    "serve targets list": "--data IN",
    "serve targets remove": "name --data IN",
    "serve token create": "-",
    "serve token list": "--data IN",
    "serve token revoke": "name --data IN",
    "config schema": "-",
    "config validate": "IN",
    "config show": "IN",
    "config from-nat": "IN",
}

WRITTEN_FILES = (
    "export",
    "report",
    "evaluate compare",
    "config from-nat",
)
MAY_BE_MISSING = ("serve targets list", "serve token list")  # a service that was never started has no tokens


def leaves(command, name=""):
    if not hasattr(command, "commands"):
        return [name]
    return [leaf for word, child in command.commands.items() for leaf in leaves(child, f"{name} {word}".strip())]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Something good for each word."""
    folder = tmp_path_factory.mktemp("inputs")
    model, runs = make_model(folder / "model"), make_runs(folder / "runs")
    build_pairs([Table(runs, create=False)], folder / "run/pairs", PairOptions(strategy="all"))
    encode_source(folder / "run/pairs", folder / "run/tokens", TokensConfig(tokenizer=str(model)), num_workers=1)
    (folder / "traces.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "score": 1}\n'
    )
    write_gguf(small_model("llama"), folder / "small.gguf")
    return {
        "GGUF": folder / "small.gguf", "CONFIG": written(folder, model), "MODEL": model, "RUNS": runs, "PAIRS": folder / "run/pairs",
        "RUN": folder / "run", "TRACES": folder / "traces.jsonl",
    }  # fmt: skip


def words_of(name, line, inputs, **places):
    known = {**inputs, **places}
    return [*name.split(), *(str(known.get(word, word)) for word in line.split())]


def call(words, monkeypatch, capsys):
    """`pairwright WORDS` in this process: exit code and lines of stderr. Whatever hangs is an error."""

    def give_up(*_):
        raise AssertionError(f"still running: {words}")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    monkeypatch.setattr(sys, "argv", ["pairwright", *words])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return ended.value.code, capsys.readouterr().err.splitlines()


def check(code, lines):
    assert code in (1, 3), lines
    assert not any("Traceback" in line for line in lines), lines
    assert [line for line in lines if line.startswith("pairwright: ")] == lines[-1:], lines


def test_every_command_is_in_the_tables():
    assert sorted(leaves(get_command(app))) == sorted(WRITES) == sorted(READS)


@pytest.mark.parametrize("name", [name for name, line in WRITES.items() if line != "-"])
@pytest.mark.parametrize("situation", ["below a file", "in /proc", "is a file"])
def test_an_output_that_cannot_be_is_one_line(name, situation, inputs, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("here")
    place = {"below a file": tmp_path / "file/x/y", "in /proc": "/proc/pairwright/x", "is a file": tmp_path / "file"}
    if situation == "is a file" and name in WRITTEN_FILES:
        pytest.skip("what it writes is a file")
    check(*call(words_of(name, WRITES[name], inputs, OUT=place[situation]), monkeypatch, capsys))
    assert (tmp_path / "file").read_text() == "here"


@pytest.mark.parametrize("name", [name for name, line in READS.items() if line != "-"])
@pytest.mark.parametrize("situation", ["below a file", "dangling link", "missing"])
def test_an_input_that_cannot_be_read_is_one_line(name, situation, inputs, tmp_path, monkeypatch, capsys):
    if situation == "missing" and name in MAY_BE_MISSING:
        pytest.skip("an empty list")
    (tmp_path / "file").write_text("here")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    place = {"below a file": tmp_path / "file/x", "dangling link": tmp_path / "link", "missing": tmp_path / "none"}
    words = words_of(name, READS[name], inputs, IN=place[situation], NEW=tmp_path / "new")
    check(*call(words, monkeypatch, capsys))


def run(words, *, num_bytes=None, **options):
    """`pairwright WORDS` as a process; no file may grow beyond `num_bytes`, as on a full disk."""

    def limit():
        if num_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

    command = [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", *map(str, words)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, text=True, preexec_fn=limit, timeout=120, stdin=subprocess.DEVNULL, **options)


@pytest.mark.parametrize(
    "name",
    [
        "run", "import", "collect", "export", "train", "report", "experience filter", "pairs build",
        "tokens build",
    ],
)  # fmt: skip
def test_a_full_disk_is_one_line(name, inputs, tmp_path):
    done = run(words_of(name, WRITES[name], inputs, OUT=tmp_path / "out"), num_bytes=8)
    check(done.returncode, done.stderr.splitlines())
    assert "free some space" in done.stderr


def test_a_full_disk_under_stdout_is_one_line(inputs):
    with open("/dev/full", "w") as full:
        done = run(["experience", "stats", inputs["RUNS"]], stdout=full)
    check(done.returncode, done.stderr.splitlines())
    assert "No space left on device: free some space" in done.stderr


def test_a_dangling_link_in_an_imported_folder_is_counted_and_the_rest_is_read(inputs, tmp_path, monkeypatch, capsys):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/a.jsonl").write_bytes(inputs["TRACES"].read_bytes())
    (tmp_path / "traces/b.jsonl").symlink_to("gone.jsonl")
    words = ["import", str(tmp_path / "traces"), "-o", str(tmp_path / "table")]
    code, lines = call(words, monkeypatch, capsys)
    assert code == 0
    assert any(line.startswith("quarantined: 1 × a link to nothing") and "b.jsonl" in line for line in lines)


def test_a_missing_parent_has_the_way_out():
    missing = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "no/page.html")
    expected = "No such file or directory: check the path, and create the folder that it is in"
    assert describe_os_error(missing) == f"no/page.html: {expected}"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EXDEV])
def test_what_root_is_never_refused_has_its_line_too(number, monkeypatch, capsys):
    def refuse(**_):
        raise OSError(number, os.strerror(number), "/some/where")

    entry = sys.modules[main.__module__]
    monkeypatch.setattr(entry, "get_command", lambda app: refuse)
    monkeypatch.setattr(entry.guards, "guard_commands", lambda command: None)
    monkeypatch.setattr(entry, "simplify_help", lambda command: None)
    code, lines = call(["import"], monkeypatch, capsys)
    check(code, lines)
    assert lines == [f"pairwright: {describe_os_error(OSError(number, os.strerror(number), '/some/where'))}"]
    assert lines[0].startswith(f"pairwright: /some/where: {os.strerror(number)}: ")


def test_an_error_without_a_path_or_a_number_is_one_line():
    assert describe_os_error(OSError("two\nlines")).startswith("two lines: check the path")
    assert describe_os_error(OSError()).startswith("OSError: ")
