"""Options of NAT's adapter become our configuration; NAT's base classes are replaced, so that it need not be installed."""

import sys
from types import ModuleType

import pytest
from pydantic import BaseModel


class NatOptions(BaseModel):
    """Stands for NAT's base classes, which take the name of a component."""

    reward: object = None

    def __init_subclass__(cls, name=None, **options):
        super().__init_subclass__(**options)


@pytest.fixture
def adapter_config(monkeypatch):
    finetuning = ModuleType("nat.data_models.finetuning")
    for name in ("TrainerAdapterConfig", "TrainerConfig", "TrajectoryBuilderConfig"):
        setattr(finetuning, name, NatOptions)
    for name in ("nat", "nat.data_models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "nat.data_models.finetuning", finetuning)
    monkeypatch.delitem(sys.modules, "pairwright.nat.nat_options", raising=False)
    from pairwright.nat.nat_options import PairwrightTrainerAdapterConfig

    monkeypatch.delitem(sys.modules, "pairwright.nat.nat_options")  # later tests import it with NAT's own classes
    return PairwrightTrainerAdapterConfig


SERVICE = {"entity_host": "http://h", "datastore_host": "http://h", "namespace": "n", "customization_config": "c"}


@pytest.mark.parametrize(
    ("options", "backend", "engine"),
    [
        ({"backend": "local", "model": "m"}, "local", "embedded"),
        ({"backend": "ray", "model": "m", "engine": {"workers": 2}}, "ray", "ray"),
        (SERVICE, "nemo-customizer", "embedded"),
    ],
)
def test_every_backend_of_the_adapter_gives_a_configuration(adapter_config, options, backend, engine):
    config = adapter_config(**options).job_config()
    assert (config.backend.name, config.engine.name) == (backend, engine)


def test_the_service_is_polled_as_the_adapter_says(adapter_config):
    config = adapter_config(**SERVICE, poll_interval_seconds=2.0, training_timeout_seconds=None)
    service = config.job_config().backend.nemo_customizer
    assert (service.poll_interval_seconds, service.training_timeout_seconds) == (2.0, None)
