"""A resume computes with the number of threads that the run began with, whatever the load of the machine is then."""

import os

import torch
from safetensors.torch import load_file

from pairwright.config import Config
from pairwright.training import read_status, train
from training.made_runs import make_model, make_pairs


class Cut(Exception):
    pass


def train_under(load, monkeypatch, *, until=None, **options):
    """Train on a machine of two cores under a load; returns the numbers of threads in use, and ends after a step."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load), raising=False)
    before, used = torch.get_num_threads(), set()

    def progress(event):
        used.add(torch.get_num_threads())
        if event["kind"] == "step" and event["step"] == until:
            raise Cut

    settings = {"batch_size": 4, "max_steps": 3, "save_every": 1, "learning_rate": 1e-3, "max_grad_norm": 0.01}
    try:
        train(Config.model_validate({"train": settings, "tokens": {"workers": 1}}), progress=progress, **options)
    except Cut:
        pass
    finally:
        torch.set_num_threads(before)
    return used


def test_a_resume_under_another_load_ends_with_the_same_bits(tmp_path, monkeypatch):
    # Two threads split a sum from 32,768 values on, such as the norm of this model's gradients, which are clipped.
    model = make_model(tmp_path / "model", width=256, layers=1)
    data = {"model": model, "pairs": make_pairs(tmp_path / "pairs", num=8)}
    assert train_under(0.0, monkeypatch, **data, output=tmp_path / "whole") == {2}
    assert train_under(0.0, monkeypatch, **data, output=tmp_path / "cut", until=2) == {2}
    assert train_under(9.0, monkeypatch, **data, output=tmp_path / "cut", resume=True) == {2}
    assert read_status(tmp_path / "cut").threads == 2
    whole, resumed = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "cut"))
    assert max(tensor.numel() for tensor in whole.values()) > 32_768
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())
    # A run that begins under load has its own number.
    assert train_under(9.0, monkeypatch, **data, output=tmp_path / "other") == {1}
