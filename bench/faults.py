"""`python -m bench faults [--times 20] [--faults kill,term,...] [COMMAND ...]`: long commands under faults.

Each command first runs undisturbed; its result is the reference. Then it starts in an empty folder, a fault is
injected, and the same command is repeated until it ends. The result is compared with the reference:

    kill       kill -9 at a random moment                  term      SIGTERM at a random moment
    disk       the folder is a tmpfs that fills up         readonly  the folder cannot be written to
    clock      kill -9, then the clock goes back one hour
    rival      the same command twice at once on one folder

The table counts attempts that lost or doubled records, had other records than the reference (unequal), did not end
(stuck), or printed a traceback. `kill` and `term` are repeated `--times` times, the other faults three times. `view` is
killed between votes: each acknowledged vote must be in the file exactly once. The service is tested in
tests/service/test_fault_run.py.
"""

import argparse
import csv
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import polars as pl

import pairwright as pw
from pairwright.pairs.pair_table import read_pairs

FAULTS = ("kill", "term", "disk", "readonly", "clock", "rival")
OUTCOMES = ("lost", "doubled", "unequal", "stuck", "traceback")
PAIRWRIGHT = [sys.executable, "-m", "pairwright"]
NUM_RUNS = 20_000  # an import of about two CPU seconds
# Exit code 2: the gate of `run` stays closed.
ENDED = (0, 2)


@dataclass(frozen=True)
class Command:
    """A command with the output folder `{out}`, and the function that reads the records of its result.

    copies    input folders that the command writes into, copied to `{out}` before each attempt
    """

    name: str
    arguments: list[str]
    read: Callable[[Path], Counter[str]]
    copies: Path | None = None


def experiences(folder: Path) -> Counter[str]:
    """Return ids and contents of an imported table."""
    with pw.Table(folder) as table:
        return Counter(f"{row.eid.uid} {hash_text(repr(row.completion))} {row.reward}" for row in table)


def runs_by_task(folder: Path) -> Counter[str]:
    """Return task, run and step of each row of a collected table; sampled answers may differ between attempts."""
    with pw.Table(folder / "experience") as table:
        return Counter(f"{row.eid.task} {row.eid.run} {row.eid.step}" for row in table)


def stages_of_run(folder: Path) -> Counter[str]:
    """Return tasks and runs of all tables of a run, pairs whose records are missing, the model, and the report."""
    tables = {"collect": "", "before": "evaluation/before", "after": "evaluation/after"}
    records = Counter({f"{name} {key}": count for name, inner in tables.items()
                       for key, count in runs_by_task(folder / "round-1" / inner).items()})  # fmt: skip
    with pw.Table(folder / "round-1" / "experience") as table:
        known = {row.eid.uid for row in table}
    pairs = read_pairs(folder / "round-1" / "pairs")
    records["a pair of a record that is not in the table"] = sum(
        uid not in known for pair in pairs for uid in (pair.chosen_eid.uid, pair.rejected_eid.uid)
    )
    for name in ("round-1/train/model/model.safetensors", "round-1/train/model/config.json", "report.html"):
        records[name] = int((folder / name).stat().st_size > 0)
    return +records


def scores(folder: Path) -> Counter[str]:
    lines = (folder / "scores" / "programs.jsonl").read_text().splitlines()[1:]
    return Counter(f"{row['uid']} {row.get('criterion')}" for row in map(json.loads, lines))


def sequences(folder: Path) -> Counter[str]:
    """Return keys, ids and masks of encoded items."""
    rows = pl.read_parquet(folder / "sequences-*.parquet").select("key", "ids", "mask")
    return Counter(f"{key} {hash_text(repr((ids, mask)))}" for key, ids, mask in rows.iter_rows())


def file_contents(pattern: str) -> Callable[[Path], Counter[str]]:
    """Return names and hashes of the files that match a pattern."""
    return lambda folder: Counter(
        f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in folder.glob(pattern)
    )


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_runs(path: Path) -> None:
    """Scored runs as OpenAI messages: eight runs for each task."""
    with path.open("w") as file:
        for number in range(NUM_RUNS):
            messages = [
                {"role": "user", "content": f"question {number // 8} " + "about an order " * 20},
                {"role": "assistant", "content": f"answer {number} " + "in several words " * 20},
            ]
            file.write(json.dumps({"messages": messages, "task": number // 8, "reward": number % 8 / 7}) + "\n")


def make_commands(folder: Path) -> dict[str, Command]:
    """Prepare inputs, a small model and a project; returns the commands by name."""
    write_runs(folder / "runs.jsonl")
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([*PAIRWRIGHT, "init", str(folder / "project"), "--template", "chat"], **quiet)
    subprocess.run([sys.executable, "make_model.py"], cwd=folder / "project", **quiet)
    project, model = folder / "project", folder / "project" / "models" / "base"
    table, pairs, tokens = folder / "table", folder / "pairs", folder / "tokens"
    few_pairs, few_tokens = (
        folder / "few-pairs",
        folder / "few-tokens",
    )  # training data: the reference model reads all pairs first
    imported = ["import", str(folder / "runs.jsonl"), "--format", "openai-chat", "--task", "task"]
    paired = ["pairs", str(table), "--strategy", "best-worst"]
    encoded = ["tokens", "build", str(pairs), "--tokenizer", str(model)]
    few = [*paired, "--max-pairs", "96"], ["tokens", "build", str(few_pairs), "--tokenizer", str(model)]
    trained = ["train", "--tokens", str(few_tokens), "--model", str(model), "--batch-size", "8", "--resume"]
    small = ["policy.num_candidates=2", "train.epochs=1"]
    steps = (imported, table), (paired, pairs), (encoded, tokens), (few[0], few_pairs), (few[1], few_tokens)
    for arguments, output in steps:
        subprocess.run([*PAIRWRIGHT, *arguments, "-o", str(output)], **quiet)
    config = str(project / "config.yaml")
    commands = [
        Command("import", [*imported, "-o", "{out}"], experiences),
        Command("pairs", [*paired, "-o", "{out}"], file_contents("pairs*.parquet")),
        Command("tokens", [*encoded, "-o", "{out}"], sequences),
        Command(
            "train",
            [*trained, "train.max_steps=12", "train.save_every=2", "train.threads=1", "-o", "{out}"],
            file_contents("model/model.safetensors"),
        ),
        Command("score", ["score", "{out}", "--with", "programs"], scores, copies=table),
        Command("collect", ["collect", config, *small, "--resume", "-o", "{out}"], runs_by_task),
        Command("run", ["run", config, *small, "-o", "{out}"], stages_of_run),
    ]
    return {command.name: command for command in commands}


class Attempt:
    """The runs of one command in one output folder, and their outcomes."""

    def __init__(self, command: Command, out: Path, *, patience: float) -> None:
        self.command, self.out, self.patience = command, out, patience
        self.has_traceback = False
        if command.copies is not None:
            shutil.copytree(command.copies, out, dirs_exist_ok=True)

    def start(self, *prefix: str) -> subprocess.Popen[str]:
        arguments = [str(self.out) if word == "{out}" else word for word in self.command.arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen([*prefix, *PAIRWRIGHT, *arguments], text=True, start_new_session=True, **pipes)

    def end(self, process: subprocess.Popen[str]) -> int | None:
        """Wait for a process; returns its exit code, or None if it had to be killed."""
        try:
            text, _ = process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
        if "Traceback (most recent call last)" in text or "panicked at" in text:
            self.has_traceback = True
            print(text, file=sys.stderr)
        return process.returncode

    def interrupt(self, number: signal.Signals, seconds: float) -> None:
        """Start the command and send it a signal at a random moment within `seconds`."""
        process = self.start()
        time.sleep(random.uniform(0, seconds))
        os.killpg(process.pid, number)
        self.end(process)

    def outcomes(self, reference: Counter[str]) -> list[str]:
        """Compare the records in the folder with those of the reference."""
        try:
            records = self.command.read(self.out)
        except (OSError, pw.PairwrightError) as error:
            print(f"{self.command.name}: {error}", file=sys.stderr)
            return ["lost"]
        found = []
        if any(key not in reference for key in records):
            found.append("unequal")
        elif reference - records:
            found.append("lost")
        if any(records[key] > count for key, count in reference.items()):
            found.append("doubled")
        return found


def disturb(attempt: Attempt, fault: str, seconds: float, size: int) -> None:
    """Inject the fault into one run of the command, and restore the folder afterwards."""
    if fault in ("kill", "clock"):
        attempt.interrupt(signal.SIGKILL, seconds)
    elif fault == "term":
        attempt.interrupt(signal.SIGTERM, seconds)
    elif fault == "disk":
        subprocess.run(["mount", "-o", f"remount,size={max(size // 2, 4096)}", str(attempt.out)], check=True)
        attempt.end(attempt.start())
        subprocess.run(["mount", "-o", "remount,size=2g", str(attempt.out)], check=True)
    elif fault == "readonly":
        # root ignores permissions unless this capability is dropped
        rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        attempt.out.chmod(0o555)
        attempt.end(attempt.start(*rights))
        attempt.out.chmod(0o755)
    else:
        first, second = attempt.start(), attempt.start()
        attempt.end(first)
        attempt.end(second)


def try_fault(command: Command, fault: str, reference: Counter[str], seconds: float, size: int) -> list[str]:
    """Make one attempt: inject the fault, repeat the command until it ends, and compare the result."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        out.mkdir()
        if fault == "disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(out)], check=True)
        try:
            attempt = Attempt(command, out, patience=60 + 10 * seconds)
            disturb(attempt, fault, seconds, size)
            prefix = ["faketime", "-f", "-1h"] if fault == "clock" else []
            codes = [attempt.end(attempt.start(*prefix))]
            while codes[-1] not in ENDED and len(codes) < 3:
                codes.append(attempt.end(attempt.start(*prefix)))
            found = ["stuck"] if codes[-1] not in ENDED else attempt.outcomes(reference)
            return found + (["traceback"] if attempt.has_traceback else [])
        finally:
            if fault == "disk":
                subprocess.run(["umount", str(out)], check=True)


def run_undisturbed(command: Command) -> tuple[Counter[str], float, int]:
    """Run the command without a fault; returns its records, its seconds, and the bytes of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        attempt = Attempt(command, Path(folder) / "out", patience=3600)
        start = time.monotonic()
        code = attempt.end(attempt.start())
        seconds = time.monotonic() - start
        if code not in ENDED:
            sys.exit(f"{command.name} failed undisturbed (exit code {code})")
        size = sum(path.stat().st_size for path in attempt.out.rglob("*") if path.is_file())
        reference = command.read(attempt.out)
        if not reference:
            sys.exit(f"{command.name}: the result has no records to compare")
        return reference, seconds, size


def kill_view(folder: Path, times: int) -> Counter[str]:
    """Vote on pairs while `view` is killed and restarted; each acknowledged vote must be in the file exactly once."""
    run = folder / "voted"
    shutil.copytree(folder / "table", run / "experience")
    shutil.copytree(folder / "pairs", run / "pairs")
    ids = iter([pair.id for pair in read_pairs(run / "pairs")][:2000])
    acknowledged = 0
    for _ in range(times):
        with subprocess.Popen(
            [*PAIRWRIGHT, "view", str(run), "--no-open", "--port", "0"], stderr=subprocess.PIPE, text=True
        ) as server:
            assert server.stderr is not None
            link = next(match for line in server.stderr if (match := re.search(r"(http\S+)/\?token=(\S+)", line)))
            client = httpx.Client(base_url=link[1], headers={"authorization": f"Bearer {link[2]}"}, trust_env=False)
            items = client.get("/api/library").json()["items"]
            source = next(item["key"] for item in items if item["kind"] == "pairs")
            moment = time.monotonic() + random.uniform(0.05, 0.5)
            while time.monotonic() < moment:
                body = {"source": source, "voter": "ada", "id": next(ids), "verdict": "a", "blind": False}
                acknowledged += client.post("/api/decide.vote", json=body).status_code == 200
            server.kill()
    with (run / "votes.csv").open(newline="") as file:
        rows = Counter((row["a"], row["b"]) for row in csv.DictReader(file))
    found: Counter[str] = Counter()
    found["lost"] = max(0, acknowledged - len(rows))
    found["doubled"] = sum(count - 1 for count in rows.values())
    print(f"view: {acknowledged} votes acknowledged, {len(rows)} in the file", file=sys.stderr)
    return found


def missing_tool(fault: str) -> str | None:
    """Return the missing requirement of a fault on this machine, if any."""
    if fault == "disk" and os.geteuid() != 0:
        return "mounting a tmpfs needs root"
    if fault == "clock" and shutil.which("faketime") is None:
        return "faketime is not installed"
    if fault == "readonly" and os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "setpriv is not installed"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench faults", description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", metavar="COMMAND")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--faults", default=",".join(FAULTS))
    options = parser.parse_args(sys.argv[2:])
    bad = 0
    print("| command | fault | attempts | " + " | ".join(OUTCOMES) + " |\n|---|---|---|" + "---|" * len(OUTCOMES))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        commands = make_commands(folder)
        names = options.commands or [*commands, "view"]
        for name in names:
            if name == "view":
                found = kill_view(folder, options.times)
                print_row("view", "kill", options.times, found)
                bad += found.total()
                continue
            reference, seconds, size = run_undisturbed(commands[name])
            for fault in options.faults.split(","):
                if (reason := missing_tool(fault)) is not None:
                    print(f"{name} {fault}: not run, {reason}", file=sys.stderr)
                    continue
                times = options.times if fault in ("kill", "term") else min(3, options.times)
                found = Counter()
                for _ in range(times):
                    found.update(try_fault(commands[name], fault, reference, seconds, size))
                print_row(name, fault, times, found)
                bad += found.total()
    sys.exit(1 if bad else 0)


def print_row(name: str, fault: str, times: int, found: Counter[str]) -> None:
    print(f"| {name} | {fault} | {times} | " + " | ".join(str(found[key]) for key in OUTCOMES) + " |", flush=True)


if __name__ == "__main__":
    main()
