"""No request that schemathesis derives from the API description gets a 500."""

import pytest
from asked_app import application, with_dataset
from service_process import job_body

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


def asking(operation, client, seen: list[int], examples: int):
    """A function that asks one call of the API with generated requests."""

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def ask(data) -> None:
        case = data.draw(operation.as_strategy())
        answer = case.call(session=client, base_url="http://127.0.0.1")
        seen.append(answer.status_code)
        assert answer.status_code < 500, (operation.label, case, answer.content[:500])
        if answer.status_code >= 400 and operation.method.upper() != "HEAD":
            assert "code" in answer.json(), (operation.label, answer.content[:500])

    return ask


def everything(tmp_path, examples: int) -> list[int]:
    """Ask every call of the API; returns the statuses that were answered."""
    seen: list[int] = []
    with application(tmp_path) as (client, _):
        with_dataset(client)
        client.post("/v1/customization/jobs", json=job_body(name="there"))
        schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
        for result in schema.get_all_operations():
            asking(result.ok(), client, seen, examples)()
    return seen


def test_no_generated_request_is_answered_with_a_500(tmp_path):
    assert len(everything(tmp_path, 3)) > 100


@pytest.mark.slow
def test_no_request_of_many_is_answered_with_a_500(tmp_path):
    assert len(everything(tmp_path, 60)) > 2000
