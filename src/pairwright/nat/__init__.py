"""Plugin for NeMo Agent Toolkit (NAT): trajectory builder, trainer adapter and trainer that use our funnel and jobs.

    trajectory_builders.*._type: pairwright_traj_builder      instead of dpo_traj_builder
    trainer_adapters.*._type:    pairwright_trainer_adapter   instead of nemo_customizer_trainer_adapter
    trainers.*._type:            pairwright_trainer           instead of nemo_customizer_trainer

NAT finds them by the entry point group `nat.components` (nat/nat_components.py). In Python, import the classes from
this package. NAT is imported when one of them is used; no other part of pairwright needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pairwright.errors import PairwrightError

if TYPE_CHECKING:
    from pairwright.nat.nat_options import (
        CustomizerHyperparameters,
        DpoHyperparameters,
        NimDeploymentConfig,
        PairwrightTrainerAdapterConfig,
        PairwrightTrainerConfig,
        PairwrightTrajectoryBuilderConfig,
    )
    from pairwright.nat.nat_trainer import PairwrightTrainer
    from pairwright.nat.nat_trajectories import CandidateStep, PreferencePair
    from pairwright.nat.trainer_adapter import PairwrightTrainerAdapter
    from pairwright.nat.trajectory_builder import PairwrightTrajectoryBuilder

_HOMES = {
    "CandidateStep": "nat_trajectories",
    "CustomizerHyperparameters": "nat_options",
    "DpoHyperparameters": "nat_options",
    "NimDeploymentConfig": "nat_options",
    "PairwrightTrainer": "nat_trainer",
    "PairwrightTrainerAdapter": "trainer_adapter",
    "PairwrightTrainerAdapterConfig": "nat_options",
    "PairwrightTrainerConfig": "nat_options",
    "PairwrightTrajectoryBuilder": "trajectory_builder",
    "PairwrightTrajectoryBuilderConfig": "nat_options",
    "PreferencePair": "nat_trajectories",
}

__all__ = [
    "CandidateStep",
    "CustomizerHyperparameters",
    "DpoHyperparameters",
    "NimDeploymentConfig",
    "PairwrightTrainer",
    "PairwrightTrainerAdapter",
    "PairwrightTrainerAdapterConfig",
    "PairwrightTrainerConfig",
    "PairwrightTrajectoryBuilder",
    "PairwrightTrajectoryBuilderConfig",
    "PreferencePair",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pairwright.nat' has no attribute {name!r}")
    try:
        return getattr(import_module(f"pairwright.nat.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        # `nat` is NAT's own top-level package
        if error.name is None or error.name.partition(".")[0] != "nat":
            raise
        raise PairwrightError(
            f"pairwright.nat.{name}: NeMo Agent Toolkit is not installed (no module {error.name}): "
            "pip install 'pairwright[nat]'"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
