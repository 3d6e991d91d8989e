"""Run the tests with browsers, signals, servers, processes and time limits many times: `make stress`.

    python -m tools.stress [--alone 30] [--together 30] [--at-once 8] [TESTS...]

Repeats the tests marked `stress`: `--alone` times one after the other, five times in each process of pytest, then
`--together` times with `--at-once` repetitions at the same time, each the load of the others. Prints the failures of
each test after every process; exit code 1 if there were any.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
MAX_SECONDS = 3600  # of one process of pytest
IN_ONE = 5  # repetitions alone of one process: it imports and collects once


def failed_tests(processes: int, arguments: list[str]) -> list[str]:
    """Run the marked tests, those of repeated files again; returns the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [
            "-q",
            "--keep-duplicates",
            "-n",
            str(processes),
            "-m",
            "stress and not slow",
            f"--junitxml={report}",
            f"--basetemp={folder}/tests",
        ]
        command = [sys.executable, "-m", "pytest", *words, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            # a process that hangs after its last test has written the report
            return [f"pytest: no end after {MAX_SECONDS} s {'with' if report.exists() else 'without'} a report"]
        if not report.exists():
            sys.exit(f"pytest did not run (exit code {done.returncode}):\n{done.stdout}{done.stderr}")
        cases = list(ET.parse(report).iter("testcase"))
        if not cases:
            sys.exit(f"no test is marked stress in: {' '.join(arguments) or 'tests'}")
        bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
        if bad or done.returncode:
            print(done.stdout, flush=True)
    names = [f"{case.get('classname')}::{case.get('name')}" for case in bad]
    return names or ([f"pytest: exit code {done.returncode}"] if done.returncode else [])


def repeat(times: int, at_once: int, arguments: list[str]) -> Counter[str]:
    """Run the tests repeatedly, some repetitions at the same time; returns the number of failures of each test."""
    failures: Counter[str] = Counter()
    started = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        # one repetition at a time uses two cores; of several at a time, each is one process
        in_one, processes = (IN_ONE, 2) if at_once == 1 else (1, 0)
        sizes = [min(in_one, times - first) for first in range(0, times, in_one)]
        runs = {pool.submit(failed_tests, processes, arguments * size): size for size in sizes}
        done = 0
        for run in as_completed(runs):
            failures.update(run.result())
            done += runs[run]
            print(
                f"{at_once} at a time, {done} of {times} done: {time.monotonic() - started:.0f} s, "
                f"load average {os.getloadavg()[0]:.1f}, {failures.total()} failures so far",
                flush=True,
            )
            for name, count in failures.most_common():
                print(f"  {count} × {name}", flush=True)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alone", type=int, default=30, help="repetitions one after the other (30)")
    parser.add_argument("--together", type=int, default=30, help="repetitions of which several run at once (30)")
    parser.add_argument("--at-once", type=int, default=8, help="repetitions that run at once (8)")
    parser.add_argument("arguments", nargs="*", help="files of tests, or options of pytest behind --")
    options = parser.parse_args()
    # only files with marked tests: collecting all of them takes longer than most of the tests
    marked = sorted(str(path) for path in TESTS.rglob("test_*.py") if "pytest.mark.stress" in path.read_text())
    arguments = options.arguments or marked
    failures = repeat(options.alone, 1, arguments) + repeat(options.together, options.at_once, arguments)
    print(f"{failures.total()} failures in {options.alone + options.together} repetitions")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
