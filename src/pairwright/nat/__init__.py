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

_MODULES = ("nat_options", "nat_trajectories", "trajectory_builder", "trainer_adapter", "nat_trainer")

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
    if name not in __all__:
        raise AttributeError(f"module 'pairwright.nat' has no attribute {name!r}")
    try:
        modules = (import_module(f"pairwright.nat.{module}") for module in _MODULES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
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
