"""Run the tests with browsers, signals, servers, processes and time limits many times: `make stress`.

    python -m tools.stress [--times 30] [--load 8] [TESTS...]

The tests marked `stress` run `--times` times alone, and again `--times` times beside `--load` busy processes (not with
`--load 0`). Prints the failures of each test after every repetition; exit code 1 if there were any.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Code of a busy process, which ends with its parent, even if the parent is killed.
BUSY = [sys.executable, "-c", "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"]
TESTS = Path(__file__).parents[1] / "tests"


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Run a number of busy processes during the block."""
    processes = [subprocess.Popen(BUSY) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def failed_tests(arguments: list[str]) -> list[str]:
    """Run the marked tests once; returns the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "stress and not slow", f"--junitxml={report}"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
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


def repeat(times: int, load: int, arguments: list[str]) -> Counter[str]:
    """Run the tests repeatedly beside busy processes; returns the number of failures of each test."""
    failures: Counter[str] = Counter()
    with busy_processes(load):
        for number in range(1, times + 1):
            started = time.monotonic()
            failures.update(failed_tests(arguments))
            seconds, averages = time.monotonic() - started, os.getloadavg()
            print(
                f"load of {load}, {number} of {times}: {seconds:.0f} s, load average {averages[0]:.1f}, "
                f"{failures.total()} failures so far",
                flush=True,
            )
            for name, count in failures.most_common():
                print(f"  {count} × {name}", flush=True)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=30, help="repetitions (30)")
    parser.add_argument("--load", type=int, default=8, help="busy processes of the second half (8); 0 leaves it out")
    parser.add_argument("arguments", nargs="*", help="files of tests, or options of pytest behind --")
    options = parser.parse_args()
    # only files with marked tests: collecting all of them takes longer than most of the tests
    marked = sorted(str(path) for path in TESTS.rglob("test_*.py") if "pytest.mark.stress" in path.read_text())
    loads = [0, options.load] if options.load else [0]
    failures = sum((repeat(options.times, load, options.arguments or marked) for load in loads), Counter())
    print(f"{failures.total()} failures in {options.times * len(loads)} repetitions")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
