"""Uploads go to servers on this machine: the hub's client may use them although the tests run offline."""

import pytest


@pytest.fixture(autouse=True)
def online():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setenv("HF_HUB_OFFLINE", "0")
        yield
