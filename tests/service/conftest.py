"""A running service for the tests that only ask it things."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_process import Service, plain_model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with stand-ins, one base model and the dataset default/pairs."""
    folder = tmp_path_factory.mktemp("service")
    with Service(folder / "data", max_running=2) as running:
        running.add_target(plain_model(folder / "model"))
        running.upload()
        yield running


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return plain_model(tmp_path / "model")
