"""One small model and a few pairs for all tests of a session; torch on one thread."""

import pytest
import torch

from training.made_runs import make_model, make_pairs

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("pairs"), 16, held=4)
