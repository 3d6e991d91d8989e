"""Registers the three components with NAT; loaded by NAT through the entry point group `nat.components`."""

from collections.abc import AsyncIterator

from nat.builder.builder import Builder
from nat.cli.register_workflow import register_trainer, register_trainer_adapter, register_trajectory_builder

from pairwright.nat.nat_options import (
    PairwrightTrainerAdapterConfig,
    PairwrightTrainerConfig,
    PairwrightTrajectoryBuilderConfig,
)
from pairwright.nat.nat_trainer import PairwrightTrainer
from pairwright.nat.trainer_adapter import PairwrightTrainerAdapter
from pairwright.nat.trajectory_builder import PairwrightTrajectoryBuilder


@register_trajectory_builder(config_type=PairwrightTrajectoryBuilderConfig)
async def pairwright_traj_builder(
    config: PairwrightTrajectoryBuilderConfig, builder: Builder
) -> AsyncIterator[PairwrightTrajectoryBuilder]:
    """Pairs of the TTC steps of an evaluation, by pairwright's funnel."""
    yield PairwrightTrajectoryBuilder(trajectory_builder_config=config)


@register_trainer_adapter(config_type=PairwrightTrainerAdapterConfig)
async def pairwright_trainer_adapter(
    config: PairwrightTrainerAdapterConfig, builder: Builder
) -> AsyncIterator[PairwrightTrainerAdapter]:
    """Training on this machine, on Ray, or on a service with the Customizer protocol."""
    yield PairwrightTrainerAdapter(adapter_config=config)


@register_trainer(config_type=PairwrightTrainerConfig)
async def pairwright_trainer(config: PairwrightTrainerConfig, builder: Builder) -> AsyncIterator[PairwrightTrainer]:
    """Collects in several runs, then trains in one job; an interrupted command resumes."""
    yield PairwrightTrainer(trainer_config=config)
