"""Runs a command and records its exit code: `python job_runner.py FOLDER COMMAND...`

This is the process of a job. It leads its own session, so it outlives the command that started it. It and its child
hold the lock that marks the job as alive. Signals to the session reach the child directly; the runner only waits. It is
a separate file because it runs as a script, without importing the package.
"""

import json
import os
import signal
import subprocess
import sys


def run(folder: str, command: list[str]) -> int:
    """Run the command, write its exit code to `exit.json`, and return the code."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _wait_on)  # a handler, not SIG_IGN, which the command would inherit
    with open(os.path.join(folder, "lock"), "r+", encoding="utf-8") as file:
        file.write(str(os.getpid()))  # the parent also writes it, but may be killed before that
    try:
        # close_fds=False: the command inherits the lock
        code = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False).wait()
    except OSError as error:
        print(f"{command[0]}: {error.strerror or error}", file=sys.stderr, flush=True)
        code = 127
    exit_file = os.path.join(folder, "exit.json")
    with open(f"{exit_file}.tmp", "w", encoding="utf-8") as file:
        json.dump({"code": code if code >= 0 else 128 - code}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{exit_file}.tmp", exit_file)
    return code


def _wait_on(*_: object) -> None:
    pass


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]) and 1)
