"""A worker that trains and learns nothing: steps take as long as a test wants.

What it does is in the seed of its configuration: 1 crashes at step 2, 2 hangs, 3 fails with a reason, 4 ignores SIGTERM.
After step 3 it waits for as long as there is a file `hold` in the service's data folder.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from pairwright.errors import PairwrightError
from pairwright.service.run.worker import prepare

CRASH, HANG, FAIL, STUBBORN = 1, 2, 3, 4


def main() -> None:
    arguments = prepare(Path(sys.argv[1]))
    assert (arguments["pairs"] / "pairs.parquet").is_file()
    seed, section, run = arguments["config"].seed, arguments["config"].train, arguments["output"]
    run.mkdir(parents=True, exist_ok=True)
    num_steps, hold = section.max_steps or 4, run.absolute().parents[2] / "hold"
    saved = run / "checkpoints"
    start = (
        max((int(path.name.partition("-")[2]) for path in saved.glob("step-*")), default=0)
        if arguments["resume"]
        else 0
    )
    with open(run / "starts.txt", "a") as file:
        file.write(f"{start}\n")

    def write(state: str, step: int, error: str | None = None) -> None:
        status = {
            "state": state,
            "step": step,
            "num_steps": num_steps,
            "steps_per_epoch": num_steps,
            "epoch": 0,
            "epochs": 1,
            "best_step": None,
            "best_metric": None,
            "error": error,
            "model": "model",
            "pid": os.getpid(),
        }
        (run / ".train.json.tmp").write_text(json.dumps(status))
        (run / ".train.json.tmp").replace(run / "train.json")

    state = {"step": start}

    def stopped(*_) -> None:
        write("stopped", state["step"])
        sys.exit(143)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if seed == STUBBORN else stopped)
    write("running", start)
    for step in range(start + 1, num_steps + 1):
        while step > 3 and hold.exists():
            time.sleep(0.02)
        if seed == HANG:
            time.sleep(3600)
        if seed == CRASH and step == 2:
            print("about to crash: out of luck", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == FAIL and step == 2:
            write("failed", step, "loss is not finite at step 2")
            sys.exit("pairwright: loss is not finite at step 2")
        state["step"] = step
        with open(run / "metrics.jsonl", "a") as file:
            sides = {"rewards/margins": step / 10, "logps/chosen": -30.0 - step, "logps/rejected": -30.0 - 2 * step}
            row = {"step": step, "epoch": 0, "time": time.time(), "loss": 1 / step, "rewards/accuracies": 0.5}
            file.write(json.dumps(row | sides) + "\n")
        (saved / f"step-{step}").mkdir(parents=True, exist_ok=True)
        write("running", step)
    (run / "model").mkdir(exist_ok=True)
    (run / "model" / "config.json").write_text("{}")
    write("completed", num_steps)


if __name__ == "__main__":
    try:
        main()
    except PairwrightError as error:
        sys.exit(f"pairwright: {error}")
