"""Deployment configs, deployments and models: what is answered, with no model server behind it."""

import pytest
import sqlalchemy as sa
from asked_app import application, with_dataset
from service_process import job_body

from pairwright.jobs.job import JobState
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import create_token
from pairwright.service.rows.schema import deployments
from pairwright.service.run.deployments import Deployments

pytestmark = pytest.mark.stress


@pytest.fixture
def app(tmp_path):
    with application(tmp_path, max_deployments=2) as (client, context):
        with_dataset(client)
        yield client, context


def finished_job(client, context, **changes) -> str:
    """The output model of a job that is completed, with an empty folder as its model."""
    job = client.post("/v1/customization/jobs", json=job_body(**changes), headers=changes.pop("headers", {})).json()
    (context.settings.job_folder(job["id"]) / "run" / "model").mkdir(parents=True)
    with context.database.writing() as connection:
        jobs.move(connection, job["id"], JobState.RUNNING, "started")
        jobs.move(connection, job["id"], JobState.COMPLETED, "completed")
    return job["output_model"]


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_model_that_nobody_makes_is_refused_with_the_known_ones(app):
    client, _ = app
    answer = client.post("/v1/deployment/configs", json={"name": "c", "model": "default/none@1"})
    assert code(answer) == (422, "unknown_model")
    assert "meta/llama-3.2-1b-instruct" in answer.json()["error"]
    assert code(client.post("/v1/deployment/configs", json={"name": "c", "model": "../x"})) == (422, "bad_name")


def test_a_model_is_deployed_once_its_job_is_completed(app):
    client, context = app
    job = client.post("/v1/customization/jobs", json=job_body()).json()
    config = {
        "name": "c",
        "model": job["output_model"],
        "nim_deployment": {"image_name": "i", "image_tag": "t", "gpu": 1},
    }
    made = client.post("/v1/deployment/configs", json=config).json()
    assert (made["name"], made["namespace"], made["nim_deployment"]["gpu"]) == ("c", "default", 1)
    asked = {"name": "d", "config": "default/c", "description": "ours"}
    assert code(client.post("/v1/deployment/model-deployments", json=asked)) == (409, "model_not_ready")
    model = finished_job(client, context)
    client.post("/v1/deployment/configs", json={"name": "ready", "model": model})
    asked = {**asked, "config": "default/ready"}
    found = client.post("/v1/deployment/model-deployments", json=asked).json()
    assert found["url"] == "http://127.0.0.1/deployments/default/d"
    assert found["models"] == [model]
    assert found["deployed"] is False
    assert found["status_details"]["status"] == "created"
    assert "work" not in found
    again = client.post("/v1/deployment/model-deployments", json=asked)
    assert code(again) == (409, "deployment_exists")
    assert again.headers["x-should-retry"] == "false"
    assert client.get("/v1/deployment/model-deployments/default/d").json() == found


def test_deployments_are_listed_newest_first_and_limited(app):
    client, context = app
    client.post("/v1/deployment/configs", json={"name": "c", "model": finished_job(client, context)})
    for name in ("a", "b"):
        body = {"name": name, "config": "default/c"}
        assert client.post("/v1/deployment/model-deployments", json=body).status_code == 200
    third = client.post("/v1/deployment/model-deployments", json={"name": "x", "config": "default/c"})
    assert code(third) == (409, "too_many_deployments")
    listed = client.get("/v1/deployment/model-deployments").json()
    assert listed["object"] == "list"
    assert [item["name"] for item in listed["data"]] == ["b", "a"]
    filtered = client.get("/v1/deployment/model-deployments", params={"filter[status]": "ready"}).json()
    assert filtered["data"] == []
    assert client.delete("/v1/deployment/model-deployments/default/a").status_code == 200
    assert client.post("/v1/deployment/model-deployments", json={"name": "x", "config": "default/c"}).status_code == 200


def test_a_deployment_that_is_not_ready_says_so(app):
    client, context = app
    model = finished_job(client, context)
    client.post("/v1/deployment/configs", json={"name": "c", "model": model})
    client.post("/v1/deployment/model-deployments", json={"name": "d", "config": "default/c"})
    for answer in (
        client.post("/deployments/default/d/v1/chat/completions", json={}),
        client.post("/v1/chat/completions", json={"model": model, "messages": []}),
    ):
        assert code(answer) == (503, "deployment_not_ready")
        assert answer.headers["retry-after"] == "2"
    assert code(client.get("/deployments/default/none/v1/models")) == (404, "deployment_not_found")
    assert code(client.post("/v1/chat/completions", json={"model": "x"})) == (404, "model_not_found")
    assert code(client.post("/v1/chat/completions", content=b"{")) == (422, "bad_body")
    with context.database.writing() as connection:  # a server that is gone, and was ready a moment ago
        connection.execute(sa.update(deployments).values(state="ready", port=1))
    assert code(client.get("/deployments/default/d/v1/models")) == (502, "model_server_failed")
    assert code(client.get("/deployments/default/d/admin")) == (404, "unknown_route")


def test_models_of_somebody_else_are_neither_listed_nor_deployed(app):
    client, context = app
    model = finished_job(client, context)
    token = create_token(context.database, "ada", ["shop"])
    headers = {"authorization": f"Bearer {token}"}
    assert [item["id"] for item in client.get("/v1/models", headers=headers).json()["data"]] == [
        "meta/llama-3.2-1b-instruct"
    ]
    body = {"name": "c", "namespace": "shop", "model": model}
    assert code(client.post("/v1/deployment/configs", json=body, headers=headers)) == (403, "forbidden_namespace")


def test_a_model_server_answers_to_the_service_alone(tmp_path):
    import sys
    from pathlib import Path

    import httpx
    from service_process import until

    command = (sys.executable, str(Path(__file__).with_name("service_model.py")))
    with application(tmp_path, model_command=command, stop_seconds=1.0) as (client, context):
        with_dataset(client)
        model = finished_job(client, context)
        client.post("/v1/deployment/model-deployments", json={"name": "d", "config": {"model": model}})
        servers = Deployments(context)

        def ready_row():
            servers.tick()
            with context.database.reading() as connection:
                row = connection.execute(sa.select(deployments)).mappings().one()
            return row if row["state"] == "ready" else None

        try:
            row = until(ready_row)
            url, body = f"http://127.0.0.1:{row['port']}/v1/chat/completions", {"model": model, "messages": []}
            for headers in ({}, {"authorization": "Bearer guess"}):
                assert httpx.post(url, json=body, headers=headers, trust_env=False).status_code == 401
            body["messages"] = [{"role": "user", "content": "hi"}]
            through = client.post("/deployments/default/d/v1/chat/completions", json=body)
            assert through.json()["choices"][0]["message"]["content"] == "hi"
            # In the environment, not where every user of the machine reads it.
            secret = context.settings.secret_of(row["id"])
            words = (Path("/proc") / (context.settings.deployment_folder(row["id"]) / "lock").read_text() / "cmdline").read_text()  # fmt: skip
            assert secret not in words
            assert context.settings.secret_of("another") != secret
        finally:
            servers.stop()


def test_a_deployment_is_changed_and_replaced(app):
    client, context = app
    first = finished_job(client, context, output_model="default/a@1")
    second = finished_job(client, context, output_model="default/b@1")
    made = client.post("/v1/deployment/model-deployments", json={"name": "d", "config": {"model": {"namespace": "default", "name": "a@1"}}}).json()  # fmt: skip
    assert made["models"] == [first]
    path = "/v1/deployment/model-deployments/default/d"
    changed = client.patch(path, json={"description": "new"}).json()
    assert (changed["description"], changed["id"]) == ("new", made["id"])
    replaced = client.patch(path, json={"config": {"model": second}}).json()
    assert replaced["models"] == [second]
    assert replaced["id"] != made["id"]  # so that the server of the old one is ended
    client.post("/v1/deployment/configs", json={"name": "c", "model": first})
    assert client.patch("/v1/deployment/configs/default/c", json={"model": second}).json()["model"] == second
    assert code(client.patch("/v1/deployment/configs/default/c", json={"model": "none"})) == (422, "unknown_model")


def test_an_endpoint_elsewhere_is_asked_only_if_the_operator_allows_it(tmp_path):
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    headers_seen: list = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers_seen.append((self.path, self.headers["authorization"]))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    body = {"name": "c", "external_endpoint": {"host_url": f"{url}/v1", "api_key": "k", "enabled_models": ["m"]}}
    try:
        with application(tmp_path / "closed") as (client, _):
            assert code(client.post("/v1/deployment/configs", json=body)) == (422, "endpoint_not_allowed")
        with application(tmp_path / "open", external_endpoints=(url,)) as (client, context):
            config = client.post("/v1/deployment/configs", json=body).json()
            assert config["external_endpoint"]["api_key"] == "***"
            deployment = client.post("/v1/deployment/model-deployments", json={"name": "d", "config": "default/c"})
            assert deployment.json()["deployed"]
            assert '"k"' not in deployment.text
            assert client.post("/v1/chat/completions", json={"model": "m"}).json() == {}
            assert headers_seen == [("/v1/chat/completions", "Bearer k")]
            Deployments(context).stop()  # ends the servers of this machine only
            assert client.get("/v1/deployment/model-deployments/default/d").json()["deployed"]
            # The same model from here needs a server here: the row of the endpoint is replaced.
            with_dataset(client)
            model = finished_job(client, context)
            path = "/v1/deployment/model-deployments/default/e"
            elsewhere = {"external_endpoint": {"host_url": url, "enabled_models": [model]}}
            client.post("/v1/deployment/model-deployments", json={"name": "e", "config": elsewhere})
            changed = client.patch(path, json={"config": {"model": model}}).json()
            assert changed["status_details"]["status"] == "created"
    finally:
        server.shutdown()
        server.server_close()
