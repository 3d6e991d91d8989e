"""Uploads go to servers on this machine: the hub's client may use them although the tests run offline. Jobs of this
machine are looked at often."""

import pytest


@pytest.fixture(autouse=True)
def online():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setenv("HF_HUB_OFFLINE", "0")
        yield


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr("pairwright.jobs.local.POLL_SECONDS", 0.01)
    monkeypatch.setattr("pairwright.jobs.local.CANCEL_SECONDS", 20.0)
