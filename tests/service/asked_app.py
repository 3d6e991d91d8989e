"""The application in this process without a supervisor, for tests of its responses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from service_process import CONFIG, plain_model

from pairwright.service import Settings
from pairwright.service.api.app import create_app
from pairwright.service.context import Context
from pairwright.service.rows.blob_store import Blobs
from pairwright.service.rows.database import Database
from pairwright.service.run.base_models import add_target
from pairwright.service.service_server import tidy


@contextmanager
def application(folder: Path, **options: Any) -> Iterator[tuple[TestClient, Context]]:
    """A client of the application, and its context; with the base model CONFIG."""
    settings = Settings(data=folder / "data", **options)
    settings.data.mkdir(parents=True)
    database = Database(settings.url)
    context = Context(settings, database, Blobs(settings.data))
    tidy(context)
    with database.writing() as connection:
        add_target(connection, CONFIG, plain_model(folder / "model"))
    with TestClient(create_app(context, supervise=False), base_url="http://127.0.0.1") as client:
        yield client, context
    database.close()


def commit(client: TestClient, lines: list[Any], repository: str = "default/pairs", **options: Any) -> Any:
    import json

    body = "".join(json.dumps(line) + "\n" for line in lines)
    return client.post(f"/v1/hf/api/datasets/{repository}/commit/main", content=body, **options)


def file_line(path: str, content: bytes) -> dict[str, Any]:
    import base64

    value = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
    return {"key": "file", "value": value}


HEADER = {"key": "header", "value": {"summary": "data"}}
TRAINING = file_line(
    "training/training_file.jsonl", b'{"prompt": "a", "chosen_response": "b", "rejected_response": "c"}\n'
)


def with_dataset(client: TestClient, repository: str = "default/pairs", **options: Any) -> str:
    namespace, name = repository.split("/")
    client.post("/v1/hf/api/repos/create", json={"name": name, "organization": namespace, "type": "dataset"}, **options)
    answer = commit(client, [HEADER, TRAINING], repository, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["commitOid"]
