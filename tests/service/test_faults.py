"""Faults: after killing any process at any time, nothing is lost, duplicated or stuck."""

import base64
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from service_process import ROW, Service, kill_process, process_of, until, worker_of
from service_trainer import CRASH, FAIL, HANG, STUBBORN

from pairwright.jobs.process import is_alive

pytestmark = pytest.mark.stress


@pytest.fixture
def fresh(tmp_path, model_folder):
    with Service(tmp_path / "data") as service:
        service.add_target(model_folder)
        service.upload()
        yield service


def starts(service: Service, job: str) -> list[int]:
    """The steps at which the trainer of a job began."""
    return [int(line) for line in (service.data / "jobs" / job / "run" / "starts.txt").read_text().split()]


def reaches_step(service: Service, job: str, step: int) -> None:
    until(lambda: service.status(job)["steps_completed"] >= step)


def test_a_worker_goes_on_while_the_service_is_killed_and_is_found_again(fresh):
    fresh.hold()
    job = fresh.job(steps=5)
    reaches_step(fresh, job, 3)
    pid = process_of(worker_of(fresh, job))
    fresh.kill()
    fresh.start()
    assert fresh.status(job)["status"] == "running"
    assert process_of(worker_of(fresh, job)) == pid
    fresh.release()
    fresh.wait_for(job, "completed")
    assert starts(fresh, job) == [0]


def test_a_restart_of_the_machine_resumes_from_the_last_checkpoint(fresh):
    fresh.hold()
    job, waiting = fresh.job(steps=5), fresh.job()
    reaches_step(fresh, job, 3)
    fresh.kill()
    kill_process(worker_of(fresh, job))
    fresh.release()
    fresh.start()
    details = fresh.wait_for(job, "completed")
    fresh.wait_for(waiting, "completed")
    assert starts(fresh, job) == [0, 3]
    assert [point["step"] for point in details["metrics"]["metrics"]["train_loss"]] == [1, 2, 3, 4, 5]
    assert starts(fresh, waiting) == [0]


@pytest.mark.slow
def test_a_service_that_is_stopped_saves_its_jobs_and_goes_on_with_them(fresh):
    fresh.hold()
    job = fresh.job(steps=5)
    reaches_step(fresh, job, 3)
    fresh.stop()
    fresh.release()
    status = json.loads((fresh.data / "jobs" / job / "run" / "train.json").read_text())
    assert status["state"] == "stopped"
    fresh.start()
    fresh.wait_for(job, "completed")
    assert starts(fresh, job) == [0, 3]


def test_a_worker_that_is_killed_is_a_failed_job_with_its_last_lines(fresh):
    fresh.hold()
    crashed, killed, next_one = fresh.job(seed=CRASH), fresh.job(), fresh.job()
    details = fresh.wait_for(crashed, "failed")
    assert "killed by signal 9" in details["status_logs"][-1]["message"]
    assert "about to crash: out of luck" in details["status_logs"][-1]["detail"]
    assert details["percentage_done"] == 25.0
    logs = fresh.get(f"/v1/customization/jobs/{crashed}/container-logs")
    assert "out of luck" in logs["error"]["explanation"]
    reaches_step(fresh, killed, 3)
    kill_process(worker_of(fresh, killed))
    fresh.wait_for(killed, "failed")
    fresh.release()
    fresh.wait_for(next_one, "completed")


@pytest.mark.slow
def test_the_reason_of_a_trainer_is_the_reason_of_the_job(fresh):
    details = fresh.wait_for(fresh.job(seed=FAIL), "failed")
    assert details["status_logs"][-1]["message"] == "loss is not finite at step 2"


def test_a_bad_row_that_was_not_looked_at_fails_the_job_with_its_place(tmp_path, model_folder):
    with Service(tmp_path / "data", check_bytes=50) as service:
        service.add_target(model_folder)
        service.upload(name="bad", rows=[ROW, {**ROW, "prompt": "b"}, {"prompt": "a"}])
        details = service.wait_for(service.job(dataset="default/bad"), "failed")
        # The reason first, and nothing of the machine.
        assert details["status_logs"][-1]["message"].startswith("training/training_file.jsonl:3: expected the keys")
        assert str(tmp_path) not in str(details)


@pytest.mark.slow
def test_a_job_without_a_sign_of_life_is_ended(tmp_path, model_folder):
    with Service(tmp_path / "data", stall_seconds=1.0) as service:
        service.add_target(model_folder)
        service.upload()
        job = service.job(seed=HANG)
        details = service.wait_for(job, "failed")
        assert details["status_logs"][-1]["message"].startswith("stalled: no sign for")
        until(lambda: not is_alive(worker_of(service, job)))


@pytest.mark.parametrize("seed", [0, pytest.param(STUBBORN, marks=pytest.mark.slow)])
def test_a_job_is_cancelled_at_any_moment(tmp_path, model_folder, seed):
    with Service(tmp_path / "data", stop_seconds=0.5) as service:
        service.add_target(model_folder)
        service.upload()
        service.hold()
        running, waiting = service.job(seed=seed), service.job()
        assert service.post(f"/v1/customization/jobs/{waiting}/cancel").json()["status"] == "cancelled"
        reaches_step(service, running, 3)
        assert service.post(f"/v1/customization/jobs/{running}/cancel").json()["status"] == "cancelling"
        details = service.wait_for(running, "cancelled")
        assert details["percentage_done"] == 75
        assert service.post(f"/v1/customization/jobs/{running}/cancel").status_code == 200
        at_once = service.job(seed=seed)
        service.post(f"/v1/customization/jobs/{at_once}/cancel")
        service.wait_for(at_once, "cancelled")
        service.release()
        ended = service.wait_for(service.job(), "completed")
        assert ended["percentage_done"] == 100


@pytest.mark.slow
def test_a_job_that_never_gets_on_is_given_up(fresh):
    job = fresh.job(seed=HANG)
    until(lambda: fresh.status(job)["status"] == "running")
    for number in range(5):
        until(lambda number=number: len(starts_or_none(fresh, job)) > number or fresh.status(job)["status"] == "failed")
        if fresh.status(job)["status"] == "failed":
            break
        fresh.kill()
        kill_process(worker_of(fresh, job))
        fresh.start()
    details = fresh.wait_for(job, "failed")
    assert details["status_logs"][-1]["message"].startswith("gave up")


def starts_or_none(service: Service, job: str) -> list[int]:
    try:
        return starts(service, job)
    except FileNotFoundError:
        return []


@pytest.mark.slow
def test_jobs_that_wait_survive_a_kill_in_order(tmp_path, model_folder):
    with Service(tmp_path / "data", max_running=0) as service:
        service.add_target(model_folder)
        service.upload()
        made = [service.job() for _ in range(5)]
        until(lambda: service.status(made[-1])["status"] == "pending")
        service.kill()
    with Service(tmp_path / "data", max_running=1) as service:
        for job in made:
            service.wait_for(job, "completed")
        listed = service.get("/v1/customization/jobs", params={"sort": "updated_at"})["data"]
        assert [job["id"] for job in listed] == made


@pytest.mark.slow
def test_a_deployment_is_found_again_and_one_that_died_is_started_again(fresh):
    job = fresh.job()
    fresh.wait_for(job, "completed")
    model = fresh.get(f"/v1/customization/jobs/{job}")["output_model"]
    assert fresh.post("/v1/deployment/configs", {"name": "c", "model": model}).status_code == 200
    asked = {"name": "d", "config": "default/c"}
    made = fresh.post("/v1/deployment/model-deployments", asked).json()
    fresh.kill()  # at once: the server may or may not have been started
    fresh.start()

    def pid_when_ready() -> int | None:
        answer = fresh.http.get("/deployments/default/d/health")
        return answer.json()["pid"] if answer.status_code == 200 else None

    first = until(pid_when_ready)
    fresh.kill()
    fresh.start()
    assert until(pid_when_ready) == first
    os.kill(first, signal.SIGKILL)
    second = until(lambda: (pid := pid_when_ready()) and pid != first and pid)
    fresh.stop()
    fresh.start()
    assert until(pid_when_ready) not in (first, second)
    (listed,) = fresh.get("/v1/deployment/model-deployments")["data"]
    assert listed["id"] == made["id"]
    assert fresh.http.delete("/v1/deployment/model-deployments/default/d").status_code == 200
    until(lambda: not list((fresh.data / "deployments").iterdir()))
    assert fresh.get("/v1/deployment/model-deployments")["data"] == []


@pytest.mark.slow
def test_a_model_server_that_cannot_start_is_a_failed_deployment_with_its_log(tmp_path, model_folder):
    command = ("/bin/sh", "-c", "echo no such model; exit 1")
    with Service(tmp_path / "data", model_command=command) as service:
        service.add_target(model_folder)
        service.post("/v1/deployment/configs", {"name": "c", "model": "meta/llama-3.2-1b-instruct"})
        service.post("/v1/deployment/model-deployments", {"name": "d", "config": "default/c"})

        def failed() -> str | None:
            (found,) = service.get("/v1/deployment/model-deployments")["data"]
            details = found["status_details"]
            return details["description"] if details["status"] == "failed" else None

        assert "no such model" in until(failed)
        assert service.http.get("/deployments/default/d/v1/models").json()["code"] == "deployment_not_ready"


def commit_lines(content: bytes, path: str = "training/training_file.jsonl") -> bytes:
    value = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
    lines = [{"key": "header", "value": {"summary": "more"}}, {"key": "file", "value": value}]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_an_upload_that_a_kill_cuts_short_leaves_the_dataset_as_it_was(fresh):
    before = fresh.get("/v1/hf/api/datasets/default/pairs")
    begun, go_on = threading.Event(), threading.Event()

    def slowly():
        body = commit_lines(b"x" * 1_000_000)
        yield body[:500_000]
        begun.set()
        go_on.wait(30)
        yield body[500_000:]

    def send() -> None:
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{fresh.url}/v1/hf/api/datasets/default/pairs/commit/main", content=slowly(), timeout=60)

    sender = threading.Thread(target=send)
    sender.start()
    assert begun.wait(30)
    until(lambda: any(path.stat().st_size for path in (fresh.data / "incoming").iterdir()))
    fresh.kill()
    go_on.set()
    sender.join()
    fresh.start()
    assert list((fresh.data / "incoming").iterdir()) == []
    assert fresh.get("/v1/hf/api/datasets/default/pairs") == before
    job = fresh.job()
    fresh.wait_for(job, "completed")


def test_a_full_disk_refuses_the_upload_and_keeps_nothing_of_it(tmp_path):
    with Service(tmp_path / "data", file_limit=400_000) as service:
        service.upload()
        before = service.get("/v1/hf/api/datasets/default/pairs")
        answer = service.http.post(
            "/v1/hf/api/datasets/default/pairs/commit/main", content=commit_lines(os.urandom(600_000))
        )
        assert answer.status_code == 507
        assert answer.json()["code"] == "disk_full"
        assert answer.headers["x-should-retry"] == "false"
        assert list((service.data / "incoming").iterdir()) == []
        assert service.get("/v1/hf/api/datasets/default/pairs") == before
        service.upload(rows=[{"prompt": "small", "chosen_response": "a", "rejected_response": "b"}])


def test_slow_and_broken_clients_do_not_keep_others_waiting(tmp_path, model_folder):
    with Service(tmp_path / "data", read_timeout_seconds=1.0) as service:
        host, port = service.url.removeprefix("http://").split(":")
        held = []
        for number in range(60):
            connection = socket.create_connection((host, int(port)))
            head = b"POST /v1/namespaces HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            if number % 3 == 0:
                connection.sendall(head)  # and never the rest of the head
            elif number % 3 == 1:
                connection.sendall(head + b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{")
            else:
                connection.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
                connection.close()
            held.append(connection)
        assert service.post("/v1/namespaces", {"id": "quick"}).status_code == 200
        answer = b""
        held[1].settimeout(30)
        while piece := held[1].recv(65536):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"slow_body" in answer
        for connection in held:
            connection.close()
        service.add_target(model_folder)
        service.upload()
        service.wait_for(service.job(), "completed")


def test_two_hundred_jobs_of_twenty_clients_are_all_there_once(tmp_path, model_folder):
    with Service(tmp_path / "data", max_running=0) as service:
        service.add_target(model_folder)
        service.upload()

        def client(number: int) -> list[str]:
            made = []
            with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as http:
                from service_process import job_body

                for count in range(10):
                    body = job_body(name=f"job-{number}-{count}")
                    for attempt in (0, 1):  # every request is sent twice, as after a lost answer
                        headers = {"x-stainless-retry-count": str(attempt), "x-stainless-read-timeout": "60"}
                        answer = http.post("/v1/customization/jobs", json=body, headers=headers)
                        assert answer.status_code == 200, answer.text
                        made.append(answer.json()["id"])
            return made

        with ThreadPoolExecutor(20) as pool:
            made = [job for jobs in pool.map(client, range(20)) for job in jobs]
        assert len(set(made)) == 200
        service.kill()
        service.start()
        pages = [service.get("/v1/customization/jobs", params={"page": page, "page_size": 60}) for page in (1, 2, 3, 4)]
        assert [page["pagination"]["current_page_size"] for page in pages] == [60, 60, 60, 20]
        assert {job["id"] for page in pages for job in page["data"]} == set(made)


@pytest.mark.slow
def test_a_second_service_on_the_same_data_is_refused(fresh):
    second = Service(fresh.data)
    with pytest.raises(AssertionError, match="another service serves it"):
        second.start()
    second.http.close()


@pytest.mark.slow
def test_signals_to_the_service_alone_leave_no_process_behind(fresh):
    fresh.hold()
    job = fresh.job()
    reaches_step(fresh, job, 3)
    pid = process_of(worker_of(fresh, job))
    fresh.process.send_signal(signal.SIGTERM)
    fresh.process.wait(30)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
