"""Jobs on a Ray cluster: a local job whose command has its work done there (ray_training.py).

The process that waits for the cluster is on this machine, and what it knows is in the run's folder, as for a local job.
"""

from pathlib import Path

from pairwright.backends import local, process
from pairwright.backends.backend import Backend, JobRequest, Say
from pairwright.backends.job import Job, JobState, changed, new_job, write_job
from pairwright.backends.local import CONFIG, PROCESS
from pairwright.backends.yaml_file import write_yaml
from pairwright.config import Config
from pairwright.errors import ConfigError


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    if request.pairs is None and request.experience is None:
        raise ConfigError("nothing to train on: give --pairs DIR or --experience DIR")
    command = [*local.train_command(folder, request), "--engine", "ray"]
    engine = config.engine.model_dump(mode="json") | {"name": "ray"}
    shown = {"name": config.name, "seed": config.seed, "engine": engine, "train": config.train.model_dump(mode="json")}
    write_yaml(folder / CONFIG, shown, heading="Written by pairwright: what this job trains with.")
    job = new_job("ray", model=request.model, pairs=request.pairs)
    job = write_job(folder, changed(job, details={"command": command, "pid": None}))
    pid = process.start(folder / PROCESS, command)
    job = write_job(folder, changed(job, state=JobState.RUNNING, details={"command": command, "pid": pid}))
    say(f"process {pid} trains on {config.engine.address or 'a cluster of its own'}; its log is in {folder / PROCESS}")
    return job


RAY = Backend(
    name="ray", submit=submit, status=local.status, cancel=local.cancel, deploy=local.deploy, logs=local.logs,
    wait_limits=local.wait_limits,
)  # fmt: skip
