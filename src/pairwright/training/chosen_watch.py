"""Watch chosen and rejected sides during preference training, and warn if it goes wrong.

`rewards/chosen` divided by β is the change of the chosen sides' log-probability since the start of the run (the
reference). Two problems are reported: chosen sides become less likely, so that only rejected ones give the margin; and
margins do not move at all.
"""

from collections import deque

from pairwright.config.train_config import TrainConfig

NUM_UPDATES = 10  # values of single updates are noisy: means over this many
LEAST_FALL = 1.0  # nats per side; a tenth if averaged over tokens
LEAST_MARGIN = 0.05  # nats per side: below this, margins have not moved


class ChosenWatch:
    """Recent metrics of a run, and whether it has warned.

    >>> watch = ChosenWatch(TrainConfig(), 1e-3)
    >>> fallen = {"rewards/chosen": -0.5, "rewards/rejected": -1.2, "rewards/margins": 0.7}
    >>> [watch.add(fallen) is not None for _ in range(12)].index(True), watch.finish() is None
    (9, True)
    """

    def __init__(self, settings: TrainConfig, rate: float) -> None:
        self._settings, self._rate = settings, rate
        self._beta = settings.dpo.beta
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=NUM_UPDATES)
        self._accuracies: list[float] = []
        self.has_warned = False

    def add(self, values: dict[str, float]) -> str | None:
        """Add the metrics of a line; return a warning, once, if chosen sides have become less likely."""
        names = ("rewards/chosen", "rewards/rejected", "rewards/margins")
        # Without a reference, rewards do not start at 0.
        if self._settings.reference == "none" or not all(name in values for name in names):
            return None
        chosen, rejected, margin = (values[name] / self._beta for name in names)
        self._recent.append((chosen, rejected, margin))
        if self.has_warned or len(self._recent) < NUM_UPDATES:
            return None
        chosen, rejected, _ = (sum(column) / NUM_UPDATES for column in zip(*self._recent, strict=True))
        if chosen > -LEAST_FALL * self._scale or rejected > chosen:
            return None
        self.has_warned = True
        held_out = ""
        if self._accuracies:
            first, now = self._accuracies[0], self._accuracies[-1]
            held_out = f" (accuracy on held-out pairs: {first:.2f} first, {now:.2f} now)"
        return (
            f"warning: dpo: chosen sides are {-chosen:.3g} nats less likely than at the start, rejected ones "
            f"{-rejected:.3g}: only rejected sides give the margin{held_out}. Raise "
            "train.dpo.sft_loss_weight or beta, or lower the learning rate"
        )

    def add_validation(self, values: dict[str, float]) -> None:
        if "eval_rewards/accuracies" in values:
            self._accuracies.append(values["eval_rewards/accuracies"])

    def finish(self) -> str | None:
        """Return a warning if margins have not moved in the whole run."""
        # Margins are measured before the update of their step, so the first one is always 0.
        largest = max((abs(margin) for _, _, margin in self._recent), default=0.0)
        if len(self._recent) < 2 or largest >= LEAST_MARGIN * self._scale:
            return None
        return (
            f"warning: dpo: margins did not move (at most {largest:.2g} nats at the end): the learning rate "
            f"{self._rate:.2g} may be too small for this model, or there are too few updates"
        )

    @property
    def _scale(self) -> float:
        return 0.1 if self._settings.dpo.preference_average_log_probs else 1.0
