"""Runs one command to its end and writes down how it ended: `python runner.py FOLDER COMMAND...`

The process that a job is. It leads its own session, so it outlives the command that started it, and it holds the lock
that says that the job is alive; so does the command. A signal to the session reaches the command itself; the runner
only waits for it. A file of its own since it runs as a script, without the imports of the package.
"""

import json
import os
import signal
import subprocess
import sys


def run(folder: str, command: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _wait_on)  # a handler, not SIG_IGN, which the command would inherit
    with open(os.path.join(folder, "lock"), "r+", encoding="utf-8") as file:
        file.write(str(os.getpid()))  # as the starter does, which may be killed before
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
