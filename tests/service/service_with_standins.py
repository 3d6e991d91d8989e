"""The service, with the stand-in trainer and model server: `python service_with_standins.py '{"data": ..., ...}'`."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from pairwright.service import Settings
from pairwright.service.service_server import serve

HERE = Path(__file__).parent


def main() -> None:
    serve_with_standins(json.loads(sys.argv[1]))


def serve_with_standins(options: dict[str, Any]) -> None:
    host, port, limit = options.pop("host", "127.0.0.1"), options.pop("port", 0), options.pop("file_limit", None)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    defaults = {
        "worker_command": (sys.executable, str(HERE / "service_trainer.py")),
        "model_command": (sys.executable, str(HERE / "service_model.py")),
        "tick_seconds": 0.05,
        "stop_seconds": 5.0,
    }
    values = defaults | options
    settings = Settings(**{**values, "data": Path(values["data"])})
    serve(settings, host=host, port=port, say=lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    main()
