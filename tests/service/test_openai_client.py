"""OpenAI's own client, unchanged: from an uploaded file to a chat with the model that was trained."""

import csv
import json

import openai
import pytest
from asked_app import application
from service_process import CONFIG, Service, until

from pairwright.service.rows.api_tokens import create_token

MODEL = "meta/llama-3.2-1b-instruct"
PREFERENCE = {
    "input": {"messages": [{"role": "user", "content": "Where is my order?"}]},
    "preferred_output": [{"role": "assistant", "content": "It has been shipped."}],
    "non_preferred_output": [{"role": "assistant", "content": "No idea."}],
}


def lines(*rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def client(service: Service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0) as opened:
        yield opened


def test_files_are_uploaded_listed_read_and_deleted(client):
    content = lines(PREFERENCE) * 1000
    file = client.files.create(file=("pairs ü.jsonl", content), purpose="fine-tune")
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "pairs ü.jsonl",
        "fine-tune",
        "processed",
    )
    other = client.files.create(file=("e.jsonl", b"{}"), purpose="evals")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    assert [item.id for item in client.files.list(purpose="fine-tune")] == [file.id]
    assert [item.id for item in client.files.list(limit=1)] == [other.id, file.id]  # page by page
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.retrieve(file.id)
    client.files.delete(other.id)


def test_from_upload_to_chat(client, service):
    training = client.files.create(file=("pairs.jsonl", lines(PREFERENCE, PREFERENCE)), purpose="fine-tune")
    validation = client.files.create(file=("held-out.jsonl", lines(PREFERENCE)), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model=MODEL,
        training_file=training.id,
        validation_file=validation.id,
        method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 2, "batch_size": "auto"}}},
        suffix="shop",
        seed=0,
        metadata={"team": "a"},
    )
    assert job.id.startswith("ftjob-")
    assert job.status in ("queued", "running")
    assert job.fine_tuned_model is None
    assert job.method.dpo.hyperparameters.beta == 0.2
    assert job.method.dpo.hyperparameters.batch_size == 8

    def ended():
        current = client.fine_tuning.jobs.retrieve(job.id)
        return current if current.status in ("succeeded", "failed", "cancelled") else None

    done = until(ended)
    assert (done.status, done.error, done.finished_at >= done.created_at) == ("succeeded", None, True)
    assert done.fine_tuned_model == f"default/llama-3.2-1b-instruct-shop@{job.id}"
    # The same job in the other API.
    twin = service.get(f"/v1/customization/jobs/{job.id}")
    assert (twin["status"], twin["hyperparameters"]["dpo"]["ref_policy_kl_penalty"]) == ("completed", 0.2)
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=3))
    assert {event.type for event in events} == {"message", "metrics"}
    assert "created" in [event.message for event in events]
    assert len(events) == len({event.id for event in events}) > 3
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert checkpoint.fine_tuned_model_checkpoint == done.fine_tuned_model
    assert (checkpoint.step_number, checkpoint.metrics.step) == (4, 4)
    assert checkpoint.metrics.train_loss == 0.25
    # The losses of each step as a file, as OpenAI names it.
    (result,) = done.result_files
    file = client.files.retrieve(result)
    assert (file.filename, file.purpose) == ("step_metrics.csv", "fine-tune-results")
    rows = list(csv.DictReader(client.files.content(result).text.splitlines()))
    assert [(row["step"], row["train_loss"]) for row in rows[::3]] == [("1", "1.0"), ("4", "0.25")]
    assert result in [item.id for item in client.files.list(purpose="fine-tune-results")]
    assert [item.id for item in client.fine_tuning.jobs.list(metadata={"team": "a"})] == [job.id]
    assert list(client.fine_tuning.jobs.list(metadata={"team": "b"})) == []
    model = client.models.retrieve(done.fine_tuned_model)
    assert (model.object, model.owned_by, model.created > 0) == ("model", "default", True)
    assert done.fine_tuned_model in [item.id for item in client.models.list()]
    # Nothing deployed it: the first question does.
    asked = {"model": done.fine_tuned_model, "messages": [{"role": "user", "content": "hi"}]}
    assert client.chat.completions.create(**asked).choices[0].message.content == "hi"
    streamed = client.chat.completions.create(**asked, stream=True)
    assert "".join(piece.choices[0].delta.content for piece in streamed) == "onetwo"
    (deployment,) = service.get("/v1/deployment/model-deployments")["data"]
    assert client.models.delete(done.fine_tuned_model).deleted
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.chat.completions.create(**asked)
    # Its server is ended, and none but the service could have asked it.
    assert service.get("/v1/deployment/model-deployments")["data"] == []
    assert deployment["name"].startswith("auto-")
    # A job that is deleted takes its result file along.
    assert service.http.delete(f"/v1/customization/jobs/{job.id}").status_code == 200
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.retrieve(result)


def test_a_job_is_paused_resumed_and_cancelled(client, service):
    training = client.files.create(file=("pairs.jsonl", lines(PREFERENCE)), purpose="fine-tune")
    service.hold()
    try:
        job = client.fine_tuning.jobs.create(model=CONFIG, training_file=training.id, method={"type": "dpo"})
        until(lambda: service.status(job.id)["steps_completed"] == 3)
        client.fine_tuning.jobs.pause(job.id)
        until(lambda: client.fine_tuning.jobs.retrieve(job.id).status == "paused")
        first, *_, last = client.fine_tuning.jobs.checkpoints.list(job.id, limit=1)
        assert (first.step_number, last.step_number, last.metrics.train_loss) == (3, 1, 1.0)
        with pytest.raises(openai.ConflictError, match="a checkpoint from which its job resumes"):
            client.chat.completions.create(model=first.fine_tuned_model_checkpoint, messages=[])
        assert client.fine_tuning.jobs.resume(job.id).status == "queued"
        starts = service.data / "jobs" / job.id / "run" / "starts.txt"
        assert until(lambda: len(starts.read_text().split()) == 2 and starts.read_text()) == "0\n3\n"
        client.fine_tuning.jobs.cancel(job.id)
        until(lambda: client.fine_tuning.jobs.retrieve(job.id).status == "cancelled")
    finally:
        service.release()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "gpt-none"}, "'gpt-none' is not known"),
        ({"training_file": "file-none"}, "no file 'file-none'"),
        ({"method": {"type": "reinforcement", "reinforcement": {}}}, "trains supervised and dpo"),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 0}}}}, "n_epochs"),
        ({"method": {"type": "supervised"}}, "pairs.jsonl:1: expected the keys prompt and completion, or messages"),
        ({"hyperparameters": {"rank": 4}}, "rank: unknown key"),
        ({"suffix": "../x"}, "suffix"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(client, change, reason):
    training = client.files.create(file=("pairs.jsonl", lines(PREFERENCE, PREFERENCE)), purpose="fine-tune")
    body = {"model": MODEL, "training_file": training.id, "method": {"type": "dpo"}, **change}
    with pytest.raises(openai.APIStatusError) as caught:
        client.fine_tuning.jobs.create(**body)
    assert 400 <= caught.value.status_code < 500
    assert reason in caught.value.message
    assert caught.value.code
    client.files.delete(training.id)


def test_a_form_that_is_none_is_refused(client, service):
    for content, media_type in (
        (b"", "multipart/form-data; boundary=x"),
        (b"--x\r\n", "multipart/form-data; boundary=x"),
        (b"--x\r\ncontent-disposition: form-data\r\n\r\na\r\n--x--\r\n", "multipart/form-data; boundary=x"),
        (b"{}", "application/json"),
        (b"--x\r\n\r\n", "multipart/form-data"),
    ):
        answer = service.http.post("/v1/files", content=content, headers={"content-type": media_type})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_form")
    with pytest.raises(openai.UnprocessableEntityError, match="purpose"):
        client.files.create(file=("a.jsonl", b"x"), purpose="nonsense")


def test_files_and_jobs_lie_in_the_namespace_of_the_token(tmp_path):
    with application(tmp_path) as (web, context):
        tokens = {name: create_token(context.database, name, [name]) for name in ("shop", "lab")}
        both = create_token(context.database, "both", ["shop", "lab"])

        def send(token: str, **headers: str):
            form = {"file": ("a.jsonl", lines(PREFERENCE)), "purpose": (None, "fine-tune")}
            return web.post("/v1/files", files=form, headers={"authorization": f"Bearer {token}", **headers})

        file = send(tokens["shop"]).json()["id"]
        mine = {"authorization": f"Bearer {tokens['shop']}"}
        job = web.post("/v1/fine_tuning/jobs", headers=mine, json={"model": MODEL, "training_file": file, "method": {"type": "dpo"}})  # fmt: skip
        assert job.json()["organization_id"] == "shop"
        theirs = {"authorization": f"Bearer {tokens['lab']}"}
        for path in (f"/v1/files/{file}", f"/v1/files/{file}/content", f"/v1/fine_tuning/jobs/{job.json()['id']}"):
            assert web.get(path, headers=theirs).status_code == 403
        assert web.get("/v1/files", headers=theirs).json()["data"] == []
        assert web.get("/v1/fine_tuning/jobs", headers=theirs).json()["data"] == []
        assert send(both).json()["error"]["code"] == "no_namespace"
        assert send(both, **{"openai-project": "lab"}).status_code == 200
