"""Which step of a run was the best: by `metric`, the smaller where it is a loss."""

from pairwright.config.train import TrainConfig
from pairwright.errors import PairwrightError
from pairwright.train.checkpoint import State


def judge(state: State, values: dict[str, float], settings: TrainConfig) -> bool:
    """Take note of a validation; whether it is the best so far."""
    if settings.metric not in values:
        raise PairwrightError(f"metric: no {settings.metric!r} among {', '.join(sorted(values))}")
    value = values[settings.metric]
    state.metrics = {**state.metrics, state.step: value}
    sign = -1 if settings.metric.endswith("loss") else 1
    if state.best_metric is None or sign * value > sign * state.best_metric:
        state.best_metric, state.best_step, state.num_bad_validations = value, state.step, 0
        return True
    state.num_bad_validations += 1
    return False


def best_steps(state: State, settings: TrainConfig) -> set[int]:
    sign = -1 if settings.metric.endswith("loss") else 1
    ranked = sorted(state.metrics, key=lambda step: (-sign * state.metrics[step], step))
    return set(ranked[: settings.keep_top_k]) | ({state.best_step} if state.best_step is not None else set())
