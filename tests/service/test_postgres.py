"""The same service on a real PostgreSQL, where one can be started."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from postgres_server import run_postgres
from service_process import Service, job_body, kill_process, plain_model, until, worker_of


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    with run_postgres() as url:
        yield url


@pytest.mark.slow
def test_jobs_survive_kills_on_postgresql(database_url, tmp_path):
    with Service(tmp_path / "data", database_url=database_url, max_running=2) as service:
        service.add_target(plain_model(tmp_path / "model"))
        service.upload()
        service.hold()
        first = service.job(steps=5)
        until(lambda: service.status(first)["steps_completed"] == 3)

        def send(number: int) -> tuple[int, str]:
            with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as http:
                answer = http.post("/v1/customization/jobs", json=job_body(name=f"job-{number % 20}"))
                return answer.status_code, answer.json().get("id", answer.json().get("code"))

        with ThreadPoolExecutor(10) as pool:  # each name is sent twice, at about the same moment
            answers = list(pool.map(send, range(40)))
        assert sorted(status for status, _ in answers) == [200] * 20 + [409] * 20
        service.kill()
        kill_process(worker_of(service, first))
        service.release()
        service.start()
        service.wait_for(first, "completed")
        for status, job in answers:
            if status == 200:
                service.wait_for(job, "completed")
        assert service.get("/v1/customization/jobs")["pagination"]["total_results"] == 21
        assert (
            service.get("/v1/customization/jobs", params={"filter[status]": "completed"})["pagination"]["total_results"]
            == 21
        )
