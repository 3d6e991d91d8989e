"""A fast stand-in for `pairwright train`; the name of the model selects its behaviour.

quick      completes after three steps          slow      runs until it is stopped, then saves and exits 143
failing    fails and says why                   crashing  dies without a word          stubborn  ignores SIGTERM
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(arguments):
    if arguments[0] == "serve":
        return serve(arguments)
    options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
    run, kind = Path(options["-o"]), options["--model"]
    print(f"training {kind}", flush=True)
    if kind == "crashing":
        print("Segmentation fault", file=sys.stderr, flush=True)
        os._exit(139)
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stopped = []
    if kind == "slow":
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    write(run, state="running", step=0)
    if kind == "failing":
        write(run, state="failed", step=1, error="loss is not a number at step 1")
        return 1
    for step in range(1, 4 if kind == "quick" else 10_000):
        with open(run / "metrics.jsonl", "a") as file:
            file.write(
                json.dumps({"step": step, "loss": 1 / step})
                + "\n"
                + json.dumps({"step": step, "eval_loss": 2 / step})
                + "\n"
            )
        write(run, state="running", step=step)
        time.sleep(0.01)
        if stopped:
            write(run, state="stopped", step=step)
            return 143
    (run / "model").mkdir(exist_ok=True)
    write(run, state="completed", step=3)
    return 0


def write(run, **more):
    value = {"num_steps": 3, "epoch": 0.5, "error": None, "model": "model", "pid": os.getpid(), **more}
    (run / "train.json.tmp").write_text(json.dumps(value))
    os.replace(run / "train.json.tmp", run / "train.json")


def serve(arguments):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

    HTTPServer(("127.0.0.1", int(arguments[arguments.index("--port") + 1])), Handler).serve_forever()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
