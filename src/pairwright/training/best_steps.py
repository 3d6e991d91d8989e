"""The best steps by validation metric, whose checkpoints are kept."""

from pairwright.config.train_config import TrainConfig
from pairwright.errors import PairwrightError
from pairwright.training.checkpoint import State


def judge(state: State, values: dict[str, float], settings: TrainConfig) -> bool:
    """Record a validation; return whether it is the best so far. For a loss, smaller is better."""
    if settings.metric not in values:
        raise PairwrightError(f"metric: no {settings.metric!r} among {', '.join(sorted(values))}")
    value = values[settings.metric]
    state.metrics = {**state.metrics, state.step: value}
    sign = -1 if settings.metric.endswith("loss") else 1  # so that larger is better
    if state.best_metric is None or sign * value > sign * state.best_metric:
        state.best_metric, state.best_step, state.num_bad_validations = value, state.step, 0
        return True
    state.num_bad_validations += 1
    return False


def best_steps(state: State, settings: TrainConfig) -> set[int]:
    """Return the steps whose checkpoints are kept: the best `keep_top_k`."""
    sign = -1 if settings.metric.endswith("loss") else 1
    # Best first; among equals the earlier step.
    ranked = sorted(state.metrics, key=lambda step: (-sign * state.metrics[step], step))
    return set(ranked[: settings.keep_top_k]) | ({state.best_step} if state.best_step is not None else set())
