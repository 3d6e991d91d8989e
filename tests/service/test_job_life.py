"""What becomes of jobs, models and their files: limits, clocks, resume, deletion, quotas."""

import json
import os
import stat

import pytest
from asked_app import HEADER, application, commit, file_line, with_dataset
from service_process import CONFIG, job_body

from pairwright.jobs import process
from pairwright.jobs.job import JobState
from pairwright.jobs.local import PROCESS
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.database import Database
from pairwright.service.run import queue
from pairwright.service.run.queue import JobQueue
from pairwright.service.service_server import lock_data

pytestmark = pytest.mark.stress


@pytest.fixture
def app(tmp_path):
    with application(tmp_path, worker_command=("true",)) as (client, context):
        with_dataset(client)
        yield client, context


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def submit(client, **changes) -> dict:
    answer = client.post("/v1/customization/jobs", json=job_body(**changes))
    assert answer.status_code == 200, answer.text
    return answer.json()


def run_files(context, job: str, state: str, *, error: str | None = None, log: str = ""):
    """The files that a worker leaves behind, with a model and a checkpoint; the job is running in the database."""
    run = context.settings.run_folder(job)
    for folder in ("model", "checkpoints/step-4", PROCESS):
        (run / folder).mkdir(parents=True, exist_ok=True)
    (run / "model" / "config.json").write_text("{}")
    (run / "checkpoints" / "step-4" / "weights").write_bytes(b"w" * 1000)
    (run / PROCESS / process.LOG).write_text(log)
    (run / PROCESS / process.LOCK).touch()
    (run / "train.json").write_text(
        json.dumps({"state": state, "step": 4, "num_steps": 4, "error": error, "model": "model"})
    )
    with context.database.writing() as connection:
        jobs.move(connection, job, JobState.RUNNING, "started")
    return run


def finish(context, job: str, state: str = "completed", **options):
    """End a job as its worker would, and let the queue see it."""
    run = run_files(context, job, state, **options)
    JobQueue(context).tick()
    return run


def test_the_longest_sequence_that_is_advertised_is_the_one_that_is_trained(app):
    client, context = app
    job = submit(client)
    assert job["config_snapshot"]["max_seq_length"] == 128
    JobQueue(context).tick()
    config = json.loads((context.settings.job_folder(job["id"]) / "config.yaml").read_text())
    assert config["tokens"] == {"max_length": 128}


def test_a_job_may_bring_its_config(app):
    client, _ = app
    config = {"target": CONFIG, "max_seq_length": 64, "training_options": [{"training_type": "dpo", "finetuning_type": "all_weights"}]}  # fmt: skip
    job = submit(client, config=config)
    assert (job["config_snapshot"]["max_seq_length"], job["config"]["target"]) == (64, CONFIG)
    for change in (
        {"max_seq_length": 4096},
        {"chat_prompt_template": "x"},
        {"training_options": [{"training_type": "sft"}]},
    ):
        answer = client.post("/v1/customization/jobs", json=job_body(config={**config, **change}))
        assert code(answer) == (422, "unsupported_config")


def test_time_in_which_the_machine_slept_is_no_silence_of_the_worker(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(queue.time, "monotonic", lambda: clock[0])
    quiet = queue.Quiet()
    assert quiet.observe(("a",)) == 0.0
    clock[0] += 1
    assert quiet.observe(("a",)) == 1.0
    clock[0] += 75  # asleep, or suspended with SIGSTOP: one pass counts for at most ten seconds
    assert quiet.observe(("a",)) == 11.0
    assert quiet.observe(("b",)) == 0.0
    # Nothing in the queue reads a clock that can be set.
    monkeypatch.setattr(queue.time, "time", None)
    clock[0] += 5
    assert quiet.observe(("b",)) == 5.0


def test_a_failed_job_goes_on_when_it_is_asked_to(app):
    client, context = app
    job = submit(client)["id"]
    run = finish(context, job, "failed", error="no space left on device")
    assert client.get(f"/v1/customization/jobs/{job}").json()["status"] == "failed"
    assert (run / "checkpoints" / "step-4").is_dir()  # for the resume
    resumed = client.post(f"/v1/customization/jobs/{job}/resume").json()
    assert resumed["status"] == "pending"
    assert resumed["status_details"]["status_logs"][-1]["message"] == "resumed by anonymous"
    assert code(client.post(f"/v1/customization/jobs/{job}/resume")) == (409, "job_not_resumable")
    finish(context, job)
    assert code(client.post(f"/v1/customization/jobs/{job}/resume")) == (409, "job_not_resumable")


def test_a_paused_job_keeps_its_checkpoints_and_a_cancelled_one_does_not(app):
    client, context = app
    for verb, has_checkpoints in (("pause", True), ("cancel", False)):
        job = submit(client)["id"]
        run = run_files(context, job, "stopped")
        assert client.post(f"/v1/customization/jobs/{job}/{verb}").json()["status"] == "cancelling"
        JobQueue(context).tick()
        assert client.get(f"/v1/customization/jobs/{job}").json()["status"] == "cancelled"
        assert (run / "checkpoints").is_dir() == has_checkpoints
    assert client.post(f"/v1/customization/jobs/{job}/resume").json()["status"] == "pending"


@pytest.mark.parametrize("keep", [False, True])
def test_checkpoints_are_dropped_when_a_job_ends_unless_they_are_to_stay(tmp_path, keep):
    with application(tmp_path, keep_checkpoints=keep) as (client, context):
        with_dataset(client)
        run = finish(context, submit(client)["id"])
        assert (run / "model").is_dir()
        assert (run / "checkpoints").is_dir() == keep


def test_a_job_is_deleted_with_its_files_once_it_has_ended(app):
    client, context = app
    job = submit(client)
    path = f"/v1/customization/jobs/{job['id']}"
    assert code(client.delete(path)) == (409, "job_active")
    finish(context, job["id"])
    client.post("/v1/deployment/model-deployments", json={"name": "d", "config": {"model": job["output_model"]}})
    assert code(client.delete(path)) == (409, "model_deployed")
    assert code(client.delete(f"/v1/models/{job['output_model']}")) == (409, "model_deployed")
    client.delete("/v1/deployment/model-deployments/default/d")
    assert client.delete(path).status_code == 200
    assert code(client.get(path)) == (404, "job_not_found")
    assert not context.settings.job_folder(job["id"]).exists()
    assert client.get("/v1/customization/jobs").json()["data"] == []


def test_a_model_is_deleted_and_its_job_stays(app):
    client, context = app
    job = submit(client, output_model="default/tuned@1")
    run = finish(context, job["id"])
    assert client.get("/v1/models/default/tuned@1").json()["namespace"] == "default"
    changed = client.patch("/v1/models/default/tuned@1", json={"description": "better"}).json()
    assert changed["description"] == "better"
    assert client.delete("/v1/models/default/tuned@1").json()["deleted"]
    assert not (run / "model").exists()
    assert code(client.get("/v1/models/default/tuned@1")) == (404, "model_not_found")
    assert client.get(f"/v1/customization/jobs/{job['id']}").json()["status"] == "completed"
    assert submit(client, output_model="default/tuned@1")["output_model"] == "default/tuned@1"
    assert code(client.delete("/v1/models/meta/llama-3.2-1b-instruct")) == (403, "base_model")


def test_a_deleted_repository_frees_its_files_at_once_but_not_those_of_others(app):
    client, context = app
    for name in ("one", "two"):
        with_dataset(client, f"default/{name}")
        commit(client, [HEADER, file_line(f"{name}.txt", name.encode())], f"default/{name}")

    def contents() -> set[bytes]:
        return {path.read_bytes() for path in context.blobs.folder.glob("??/*")}

    assert {b"one", b"two"} < contents()
    client.request("DELETE", "/v1/hf/api/repos/delete", json={"name": "default/one", "type": "dataset"})
    assert b"one" not in contents()
    assert len(contents()) == 2  # what `two` and `pairs` share, and what `two` has alone


def test_a_blob_that_a_commit_is_about_to_name_is_not_removed(app):
    _, context = app
    with context.blobs.hold() as held:
        blob = context.blobs.add([b"new"], 3, held)
        assert context.blobs.remove([blob.sha256]) == 0
    assert context.blobs.remove([blob.sha256]) == 1


def test_a_namespace_has_a_quota(tmp_path):
    with application(tmp_path, quota_bytes=5000) as (client, context):
        with_dataset(client)
        assert commit(client, [HEADER, file_line("a", b"a" * 3000)]).status_code == 200
        assert code(commit(client, [HEADER, file_line("b", b"b" * 3000)])) == (413, "quota_exceeded")
        job = submit(client)["id"]
        run = finish(context, job)
        (run / "model" / "weights").write_bytes(b"w" * 4000)
        assert code(client.post("/v1/customization/jobs", json=job_body())) == (413, "quota_exceeded")
        client.delete(f"/v1/customization/jobs/{job}")
        submit(client)


def test_no_path_of_the_machine_is_shown_and_the_reason_comes_first(app, tmp_path):
    client, context = app
    job = submit(client)["id"]
    run = context.settings.run_folder(job)
    log = f'loading {tmp_path}/model/model.safetensors\nTraceback: File "/usr/lib/python3/site.py", line 1\n'
    finish(context, job, "failed", error=f"{run}/train.json: no space left", log=log + "see http://127.0.0.1:80/v1/x")
    details = client.get(f"/v1/customization/jobs/{job}/status").json()
    assert details["status_logs"][-1]["message"] == "train.json: no space left"
    lines = client.get(f"/v1/customization/jobs/{job}/container-logs").json()["entries"]["worker"]["logs"]["lines"]
    assert lines == ["loading model.safetensors", 'Traceback: File "site.py", line 1', "see http://127.0.0.1:80/v1/x"]
    for path in ("", "/status", "/container-logs"):
        assert str(tmp_path) not in client.get(f"/v1/customization/jobs/{job}{path}").text


def test_the_data_folder_is_closed_to_others(tmp_path, service):
    import os

    os.close(lock_data(tmp_path / "data"))
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    database = Database(f"sqlite:///{tmp_path}/data/state.sqlite3")
    database.close()
    assert stat.S_IMODE((tmp_path / "data" / "state.sqlite3").stat().st_mode) == 0o600
    # All that a running service has written.
    for path in service.data.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))


def test_a_data_folder_that_was_open_to_others_is_closed(tmp_path):
    tmp_path.chmod(0o755)
    os.close(lock_data(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("version", [1, 2])
def test_a_database_of_an_earlier_version_is_taken_over(tmp_path, version):
    import sqlalchemy as sa

    with application(tmp_path) as (client, context):
        with_dataset(client)
        submit(client, project="p")
        with context.database.writing() as connection:
            if version == 1:
                connection.execute(sa.text("DROP TABLE hub_references"))
            else:
                connection.execute(sa.text("CREATE TABLE job_facets (number INTEGER)"))
            connection.execute(sa.text("UPDATE service SET value = :version"), {"version": str(version)})
        url = context.settings.url
        Database(url).close()
        listed = client.get("/v1/customization/jobs", params={"filter[project]": "p"}).json()["data"]
        assert len(listed) == 1
        assert commit(client, [HEADER, file_line("more.txt", b"x")]).status_code == 200
        assert client.get("/v1/hf/api/datasets/default/pairs/tree/main").json()[0]["path"] == "more.txt"
