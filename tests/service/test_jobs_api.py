"""What the service answers about namespaces, datasets, base models and jobs."""

import json

import pytest
from asked_app import HEADER, application, commit, file_line, with_dataset
from service_process import CONFIG, job_body

from pairwright.jobs.job import TRANSITIONS, JobState, states_before
from pairwright.service.request_models import Hyperparameters
from pairwright.service.rows import job_rows as jobs
from pairwright.service.run.hyperparameters import train_section

GOOD = {"prompt": "a", "chosen_response": "b", "rejected_response": "c"}


@pytest.fixture
def app(tmp_path):
    with application(tmp_path) as (client, context):
        with_dataset(client)
        yield client, context


@pytest.fixture
def client(app):
    return app[0]


def refused(answer, status: int, code: str) -> str:
    """The message of a refusal of the expected kind."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return answer.json()["error"]


def test_a_namespace_that_is_there_is_refused_without_a_retry(client):
    made = client.post("/v1/namespaces", json={"id": "shop", "description": "ours"}).json()
    assert made["id"] == "shop"
    assert made["created_at"] == made["updated_at"]
    second = client.post("/v1/namespaces", json={"id": "shop"})
    refused(second, 409, "namespace_exists")
    assert second.headers["x-should-retry"] == "false"
    assert client.get("/v1/namespaces/shop").json() == made
    assert client.post("/v1/datastore/namespaces", data={"namespace": "shop"}).status_code == 201
    refused(client.post("/v1/datastore/namespaces", data={"namespace": "shop"}), 409, "datastore_namespace_exists")
    refused(client.post("/v1/datastore/namespaces", json={}), 422, "no_namespace")


def test_a_dataset_is_registered_listed_and_deleted(client):
    body = {"name": "tickets", "namespace": "default", "files_url": "hf://datasets/default/pairs", "description": "d"}
    made = client.post("/v1/datasets", json=body).json()
    assert {key: made[key] for key in body} == body
    assert made["id"].startswith("dataset-")
    refused(client.post("/v1/datasets", json=body), 409, "dataset_exists")
    refused(client.post("/v1/datasets", json={**body, "namespace": "nobody"}), 422, "namespace_not_found")
    refused(client.post("/v1/datasets", json={**body, "files_url": "file:///etc/passwd"}), 422, "bad_files_url")
    assert [item["name"] for item in client.get("/v1/datasets").json()["data"]] == ["tickets"]
    refused(client.delete("/v1/namespaces/default"), 409, "namespace_in_use")
    assert client.delete("/v1/datasets/default/tickets").status_code == 200
    refused(client.get("/v1/datasets/default/tickets"), 404, "dataset_not_found")


@pytest.mark.parametrize(
    ("dpo", "expected"),
    [
        ({}, False),
        ({"preference_average_log_probs": True}, True),
        ({"preference_average_log_probs": True, "sft_average_log_probs": False}, False),
    ],
)
def test_the_sft_term_is_averaged_as_the_preference_term_unless_it_is_set(dpo, expected):
    asked = Hyperparameters.model_validate({"training_type": "dpo", "finetuning_type": "lora", "dpo": dpo})
    assert train_section(asked)["dpo"]["sft_average_log_probs"] is expected


def test_a_job_says_what_it_will_train_on_what(client):
    revision = client.get("/v1/hf/api/datasets/default/pairs").json()["sha"]
    job = client.post("/v1/customization/jobs", json=job_body(custom_fields={"ours": "1"}, description="first")).json()
    assert job["status"] == "created"
    assert job["output_model"] == f"default/llama-3.2-1b-instruct-pairs-all_weights@{job['id']}"
    assert job["dataset"]["files_url"] == f"hf://datasets/default/pairs@{revision}"
    assert job["config_snapshot"]["base_model"] == "meta/llama-3.2-1b-instruct"
    assert job["config_snapshot"]["max_seq_length"] == 128
    assert job["hyperparameters"]["training_type"] == "dpo"
    assert (job["custom_fields"], job["description"]) == ({"ours": "1"}, "first")
    assert job["status_details"]["percentage_done"] == 0
    assert "work" not in job  # clients must not see folders of the machine
    assert client.get(f"/v1/customization/jobs/{job['id']}").json() == job
    status = client.get(f"/v1/customization/jobs/{job['id']}/status").json()
    assert status["percentage_done"] == 0
    assert status["metrics"]["metrics"] == {"train_loss": [], "val_loss": []}


def test_a_job_keeps_the_revision_that_it_was_given(client):
    pinned = client.get("/v1/hf/api/datasets/default/pairs").json()["sha"]
    assert commit(client, [HEADER, file_line("training/more.jsonl", b"{}\n")]).json()["commitOid"] != pinned
    dataset = {"name": "pairs", "namespace": "default", "files_url": f"hf://datasets/default/pairs@{pinned}"}
    job = client.post("/v1/customization/jobs", json=job_body(dataset=dataset)).json()
    assert job["dataset"]["files_url"] == dataset["files_url"]
    unknown = {**dataset, "files_url": f"hf://datasets/default/pairs@{'0' * 40}"}
    refused(client.post("/v1/customization/jobs", json=job_body(dataset=unknown)), 422, "dataset_not_found")


def test_an_unknown_hyperparameter_is_named(client):
    body = job_body()
    body["hyperparameters"]["learning_rte"] = 1
    message = refused(client.post("/v1/customization/jobs", json=body), 422, "unknown_hyperparameter")
    assert message == "hyperparameters.learning_rte: unknown key"
    body = job_body()
    body["hyperparameters"]["dpo"] = {"beta": 0.1}
    message = refused(client.post("/v1/customization/jobs", json=body), 422, "unknown_hyperparameter")
    assert message == "hyperparameters.dpo.beta: unknown key"
    refused(client.post("/v1/customization/jobs", json=job_body(datset="x")), 422, "unknown_key")


@pytest.mark.parametrize(
    ("knobs", "where"),
    [
        ({"training_type": "grpo"}, "training_type"),
        ({"training_type": "distillation"}, "training_type"),
        ({"optimizer": "adam_with_flat_lr", "weight_decay": 0.1}, "optimizer"),
        ({"learning_rate": 1e-5, "min_learning_rate": 1e-3}, "hyperparameters"),
        ({"grpo": {"environment": {}}}, "grpo"),
    ],
)
def test_what_cannot_be_trained_exactly_is_refused(client, knobs, where):
    body = job_body()
    body["hyperparameters"] |= knobs
    message = refused(client.post("/v1/customization/jobs", json=body), 422, "unsupported_hyperparameter")
    assert where in message


def test_an_unknown_config_is_refused_with_the_known_ones(client):
    message = refused(client.post("/v1/customization/jobs", json=job_body(config="meta/none@1")), 422, "unknown_config")
    assert CONFIG in message
    assert client.post("/v1/customization/jobs", json=job_body(config=CONFIG.partition("+")[0])).status_code == 200


def test_what_is_asked_for_and_has_no_effect_is_a_warning(client):
    body = job_body(integrations=[{"type": "wandb"}])
    body["hyperparameters"] |= {
        "sequence_packing_enabled": True,
        "sft": {"hidden_dropout": 0.1},
        "log_every_n_steps": 0,
    }
    warnings = client.post("/v1/customization/jobs", json=body).json()["warnings"]
    messages = [warning["message"].split()[0] for warning in warnings]
    assert messages == ["sequence_packing_enabled", "integrations", "sft.hidden_dropout"]


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"epochs": True}, "hyperparameters.epochs: Value error, expected a number"),
        ({"learning_rate": True}, "hyperparameters.learning_rate: Value error, expected a number"),
        ({"dpo": {"preference_loss_weight": 0}}, "both 0: nothing would be trained"),
    ],
)
def test_values_that_train_nothing_or_are_no_numbers_are_refused(client, knobs, reason):
    body = job_body()
    body["hyperparameters"] |= knobs
    assert reason in refused(client.post("/v1/customization/jobs", json=body), 422, "bad_request")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a"}, "expected the keys prompt"),
        (
            {"prompt": [{"role": "zzz", "content": "a"}], "chosen_response": "b", "rejected_response": "c"},
            "role 'zzz': expected",
        ),
        ({"prompt": "a", "chosen_response": " ", "rejected_response": "c"}, "chosen_response: the answer is empty"),
    ],
)
def test_a_bad_row_is_refused_when_the_job_is_submitted(client, row, reason):
    lines = b"".join(json.dumps(item).encode() + b"\n" for item in (GOOD, row))
    commit(client, [HEADER, file_line("training/training_file.jsonl", lines)])
    message = refused(client.post("/v1/customization/jobs", json=job_body()), 422, "bad_row")
    assert message.startswith(f"training/training_file.jsonl:2: {reason}")
    assert client.get("/v1/customization/jobs").json()["data"] == []


def test_a_training_file_at_the_top_is_enough(client):
    lines = [HEADER, file_line("training.jsonl", json.dumps(GOOD).encode() + b"\n")]
    client.post("/v1/hf/api/repos/create", json={"name": "top", "organization": "default", "type": "dataset"})
    commit(client, lines, "default/top")
    assert client.post("/v1/customization/jobs", json=job_body(dataset="default/top")).status_code == 200


def test_a_dataset_without_a_training_file_is_refused(client):
    client.post("/v1/hf/api/repos/create", json={"name": "empty", "organization": "default", "type": "dataset"})
    refused(client.post("/v1/customization/jobs", json=job_body(dataset="default/empty")), 422, "no_training_file")
    refused(client.post("/v1/customization/jobs", json=job_body(dataset="default/none")), 422, "dataset_not_found")


def test_a_repeated_request_makes_no_second_job(client):
    def send(attempt: int, **more: str):
        headers = {"x-stainless-retry-count": str(attempt), "x-stainless-read-timeout": "60.0", **more}
        return client.post("/v1/customization/jobs", json=job_body(), headers=headers).json()["id"]

    first = send(0)
    assert send(1) == first
    assert send(2) == first
    second = send(0)  # a new submission of the same body, not a repeat
    assert second != first
    assert send(1) == second
    lost = send(1)  # its first sending never came here; the jobs above have had their repeats
    assert lost not in (first, second)
    third = client.post("/v1/customization/jobs", json=job_body(), headers={"idempotency-key": "mine"}).json()["id"]
    assert third not in (first, second, lost)
    again = client.post("/v1/customization/jobs", json=job_body(), headers={"idempotency-key": "mine"})
    assert again.json()["id"] == third
    other = client.post("/v1/customization/jobs", json=job_body(seed=5), headers={"idempotency-key": "mine"})
    refused(other, 409, "key_reused")
    assert client.get("/v1/customization/jobs").json()["pagination"]["total_results"] == 4


def test_a_repeat_that_comes_too_late_is_a_new_job(app, monkeypatch):
    client, _ = app
    headers = {"x-stainless-retry-count": "1", "x-stainless-read-timeout": "60"}
    first = client.post("/v1/customization/jobs", json=job_body()).json()["id"]
    monkeypatch.setattr(jobs, "age_seconds", lambda moment: 100.0)
    assert client.post("/v1/customization/jobs", json=job_body(), headers=headers).json()["id"] != first


def test_names_and_output_models_are_given_once(client):
    named = job_body(name="nightly", output_model="default/better@1")
    assert client.post("/v1/customization/jobs", json=named).json()["output_model"] == "default/better@1"
    answer = client.post("/v1/customization/jobs", json=named)
    refused(answer, 409, "job_exists")
    assert answer.headers["x-should-retry"] == "false"
    same_model = job_body(output_model="default/better@1")
    refused(client.post("/v1/customization/jobs", json=same_model), 409, "output_model_exists")
    elsewhere = job_body(output_model="others/better@1")
    refused(client.post("/v1/customization/jobs", json=elsewhere), 422, "bad_output_model")


def test_lists_have_pages_order_and_filters(client):
    made = [
        client.post("/v1/customization/jobs", json=job_body(name=f"job-{n}", steps=n + 1)).json()["id"]
        for n in range(5)
    ]
    client.post(f"/v1/customization/jobs/{made[2]}/cancel")

    def listed(**asked):
        answer = client.get("/v1/customization/jobs", params=asked)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    assert listed() == made[::-1]
    assert listed(sort="created_at", page_size=2, page=2) == made[2:4]
    assert listed(page=9) == []
    assert listed(**{"filter[status]": "cancelled"}) == [made[2]]
    assert listed(**{"filter[name]": "job-1,job-3", "sort": "name"}) == [made[1], made[3]]
    assert listed(**{"filter[training_type]": "dpo", "page_size": 2, "page": 3}) == [made[0]]
    assert listed(**{"filter[base_model]": "another"}) == []
    page = client.get("/v1/customization/jobs", params={"page_size": 2}).json()
    assert page["pagination"] == {
        "page": 1, "page_size": 2, "current_page_size": 2, "total_pages": 3, "total_results": 5,
    }  # fmt: skip
    refused(client.get("/v1/customization/jobs", params={"filter[colour]": "red"}), 422, "unknown_filter")
    refused(client.get("/v1/customization/jobs", params={"sort": "colour"}), 422, "unknown_sort")
    refused(client.get("/v1/customization/jobs", params={"page": 0}), 422, "bad_request")


def test_a_list_shows_a_job_as_the_job_itself_is_shown(client):
    plain = job_body(name="plain", steps=3, description='a "quoted" line\nwith an é and a number 1e-05')
    for body in (plain, job_body(name="tuned", steps=4)):
        client.post("/v1/customization/jobs", json=body)
    client.post(f"/v1/customization/jobs/{client.get('/v1/customization/jobs').json()['data'][0]['id']}/cancel")
    for job in client.get("/v1/customization/jobs").json()["data"]:
        assert job == client.get(f"/v1/customization/jobs/{job['id']}").json()
        assert not {"work", "openai", "is_paused"} & set(job)


def test_only_changes_of_the_table_are_written(app):
    client, context = app
    every = {new: set(states_before(new)) for new in JobState}
    assert all(new in TRANSITIONS[old] for new, olds in every.items() for old in olds)
    job = client.post("/v1/customization/jobs", json=job_body()).json()["id"]
    with context.database.writing() as connection:
        assert not jobs.move(connection, job, JobState.COMPLETED, "no worker ever ran")
        assert jobs.move(connection, job, JobState.RUNNING, "started")
        assert jobs.move(connection, job, JobState.COMPLETED, "done")
        assert not jobs.move(connection, job, JobState.CANCELLING, "too late")
    refused(client.post(f"/v1/customization/jobs/{job}/cancel"), 409, "job_ended")
    assert client.get(f"/v1/customization/jobs/{job}").json()["status_details"]["percentage_done"] == 100


def test_configs_and_targets_are_listed_without_the_folders_of_the_machine(client, tmp_path):
    (config,) = client.get("/v1/customization/configs").json()["data"]
    assert f"{config['namespace']}/{config['name']}" == CONFIG
    assert {option["training_type"] for option in config["training_options"]} == {"dpo", "sft"}
    assert config["target"]["num_parameters"] == 12
    (target,) = client.get("/v1/customization/targets").json()["data"]
    assert target["base_model"] == "meta/llama-3.2-1b-instruct"
    assert str(tmp_path) not in client.get("/v1/customization/configs").text
    assert client.get("/v1/customization/configs/meta/llama-3.2-1b-instruct@v1.0.0+A100").json() == config
    refused(client.get("/v1/customization/targets/meta/none"), 404, "target_not_found")


def test_every_refusal_is_json_with_a_code(client):
    refused(client.get("/nowhere"), 404, "unknown_route")
    refused(client.put("/v1/namespaces"), 405, "wrong_method")
    refused(client.get("/v1/customization/jobs/cust-none"), 404, "job_not_found")
    refused(client.post("/v1/namespaces", content=b"{nonsense"), 422, "bad_request")
    refused(client.post("/v1/namespaces", json={"id": "../etc"}), 422, "bad_name")
    refused(client.post("/v1/namespaces", json={"id": "a" * 200}), 422, "bad_name")
    refused(client.post("/v1/namespaces", content=b'{"id": "x", "custom_fields": {"a": NaN}}'), 422, "bad_request")
    refused(
        client.post("/v1/namespaces", content=b'{"id": "x", "custom_fields": {"a": "\\ud800"}}'), 422, "bad_request"
    )


def test_health_and_metrics_are_there(client):
    assert client.get("/health").json()["status"] == "ok"
    client.post("/v1/customization/jobs", json=job_body())
    text = client.get("/metrics").text
    assert 'pairwright_jobs{state="created"} 1' in text
    assert 'pairwright_http_requests_total{method="POST",status="200"}' in text
