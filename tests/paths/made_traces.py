"""Traces and digests for the tests of stages on addresses, and the command line as a user meets it there."""

import json
import os
import re
import subprocess
import sys
from hashlib import sha256

from pairwright.paths import list_names, place
from pairwright.paths.addresses import Remote


def trace_lines(start=0, stop=24, *, torn=True):
    """Chats of several tasks, four candidates each; the third line is torn."""
    lines = [
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"question {task}"},
                    {"role": "assistant", "content": f"answer {run} of {task} " * (1 + (run * task) % 5)},
                ],
                "reward": run / 4,
                "task_id": f"t{task}",
            }
        )
        for task in range(start, stop)
        for run in range(4)
    ]
    return ("\n".join([*lines[:2], "{torn", *lines[2:]] if torn else lines) + "\n").encode()


def digests(folder, *, suffix="", names=True):
    """What the visible files of a folder hold, wherever it is; lineage.json says where that is. Names of parts have the
    time in them, and table.json says when the table was created."""
    there = place(folder)
    if isinstance(there, Remote):
        files = {name: (there / name).read_bytes() for name in list_names(there)}
    else:
        files = {path.name: path.read_bytes() for path in sorted(there.iterdir()) if path.is_file()}
    files.pop("lineage.json", None)
    if "table.json" in files:
        files["table.json"] = re.sub(rb'"created": *"[^"]*"', b"", files["table.json"])
    shown = sorted((name, data) for name, data in files.items() if not name.startswith(".") and name.endswith(suffix))
    return [(name if names else "", sha256(data).hexdigest()) for name, data in shown]


def command(*words, **environment):
    """Run the command line in a separate process."""
    return subprocess.run(
        [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", *map(str, words)],
        capture_output=True, text=True, env=os.environ | environment, stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip


def in_environment(task, *, function, environment):
    """The function in a worker whose node was started with this environment."""
    os.environ.update(environment)
    return function(task)
