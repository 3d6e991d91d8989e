"""The training loop: load, compute the reference once, update, validate, save, finish; or stop on a signal.

An update is a pure function of the weights, the optimizer's state and the step number. `BatchOrder` determines its
items. Splitting a batch into parts does not change the update, since every loss is divided by the normaliser of the
whole batch. So a resumed run ends with the same weights, bit for bit on a CPU.
"""

import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

from pairwright.config import Config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.interrupts import interrupt
from pairwright.ledger.trained import write_trained
from pairwright.paths import claim_folder
from pairwright.records.messages import content_hash
from pairwright.tokens.stage.cache import LOSSES
from pairwright.tokens.tokenizer import choose_template
from pairwright.training.channels.channel import Channel
from pairwright.training.channels.channels import load_channels, token_options, use_tokens
from pairwright.training.checkpoint import (
    CheckpointError,
    State,
    best_steps,
    judge,
    load_optimizer,
    load_weights,
    read_state,
    remove_old,
    save_checkpoint,
)
from pairwright.training.chosen_watch import ChosenWatch
from pairwright.training.data import UNUSED
from pairwright.training.metrics import REPORTERS, Log, Progress, Sums, add, check_reporters, means
from pairwright.training.model.load_model import model_hash, save_model, trainable
from pairwright.training.model.policy_model import open_policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.reference import ReferenceCache
from pairwright.training.optimizer import clip_gradients, default_rate, learning_rate, make_optimizer
from pairwright.training.run_dir import RunFolder


class Stopped(PairwrightError):
    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class Stop:
    """Handles SIGTERM and Ctrl-C. While `is_updating`, the first signal lets the running step finish, and a second one
    ends the process. Before the first update, the first signal ends a single process immediately, and several processes
    at the next `check`."""

    def __init__(self, *, is_alone: bool = True) -> None:
        self.signal_number: int | None = None
        self.is_updating = not is_alone
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        # Python accepts signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        is_second, self.signal_number = self.signal_number is not None, number
        if is_second and number == signal.SIGTERM:
            # The default action ends the process with the exit status of SIGTERM, which supervisors expect.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif is_second:
            raise KeyboardInterrupt  # not an Exception: no handler mistakes it for a bad record
        elif not self.is_updating:
            interrupt(frame)

    def check(self) -> None:
        """End the run if a signal has arrived; called between batches of the reference."""
        if self.signal_number is not None:
            raise KeyboardInterrupt

    def explain(self) -> Stopped:
        """Return the error of a run that ended immediately."""
        if self.is_updating:
            message = "stopped in the middle of a step; --resume continues from the newest checkpoint"
        else:
            message = "stopped before the first update of this start; the same command begins again"
        return Stopped(message, self.signal_number or signal.SIGINT)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


# Options that may change when a run is resumed: they do not affect the update
_HARMLESS = {
    "micro_batch_size", "micro_batch_tokens", "gradient_accumulation_steps", "prefix_sharing", "threads",
    "gradient_checkpointing", "log_every_n_steps", "save_every", "keep_top_k", "dump_batches", "report_to", "max_loss",
    "device",
}  # fmt: skip


class BadLoss(PairwrightError):
    """The loss or the gradient is not a number, or far too large."""


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of the model, the number of updates, and the last metrics."""

    model: Path
    num_steps: int
    metrics: dict[str, float]
    best_step: int | None = None


def train(
    config: Config,
    *,
    model: Path,
    output: Path,
    pairs: Path | None = None,
    experience: Path | None = None,
    validation: Path | None = None,
    tokens: Path | None = None,
    reference_cache: Path | None = None,
    resume: bool = False,
    progress: Progress = lambda event: None,
) -> TrainResult:
    """Train the model of a folder on pairs and experiences; the result is in `output`.

    `validation` is an experience table to validate likelihood on; pairs have their own split. `tokens` is a folder that
    `pairwright tokens` wrote: its sequences are used unchanged, and refused if they do not match the table, the
    tokenizer or the configuration. Their table is the one in their manifest, unless `pairs` or `experience` names
    it. `reference_cache` is the folder of the reference's values, by default one in `output`: runs with other settings
    on the same model and sequences reuse them. Only one process at a time trains in `output`.
    """
    check_reporters(config.train.report_to)
    if config.train.channels.kto and config.train.kto.sft_loss_weight is None:
        raise ConfigError(
            "train.kto.sft_loss_weight: not set, and no default is safe: set train.kto.sft_loss_weight=10 and examine "
            "the model, or train dpo or sft; see docs/explanation/evidence.md"
        )
    if tokens is not None:
        config, pairs, experience = use_tokens(config, tokens, pairs, experience)
    ranks = Ranks.here()
    stop = Stop(is_alone=ranks.size == 1)
    # only the first process writes, so only it locks
    with claim_folder(output, "train.json", work="training") if ranks.is_first else nullcontext():
        folder = RunFolder(output, is_writer=ranks.is_first, resume=resume)
        try:
            with stop:
                data = {"pairs": pairs, "experience": experience, "validation": validation, "tokens": tokens}
                folder.write_status(inputs=folder.references({**data, "tokenizer": config.tokens.tokenizer or model}))
                cache = ReferenceCache(reference_cache or output / "reference", stop.check)
                training = Training(config, model, folder, ranks, data, progress, cache)
                stop.is_updating = True
                return training.run(stop)
        except Stopped:
            folder.write_status(state="stopped")
            raise
        except KeyboardInterrupt as error:
            folder.write_status(state="stopped")
            if stop.signal_number is None:  # not our signal handler
                raise
            raise stop.explain() from error
        except Exception as error:
            folder.write_status(state="failed", error=str(error) or type(error).__name__)
            raise


class Training:
    def __init__(
        self,
        config: Config,
        base: Path,
        folder: RunFolder,
        ranks: Ranks,
        data: Any,
        progress: Progress,
        cache: ReferenceCache,
    ) -> None:
        self.config, self.settings, self.base = config, config.train, base
        self.folder, self.ranks, self.progress = folder, ranks, progress
        settings = self.settings
        torch.set_num_threads(self._num_threads())
        torch.manual_seed(config.seed)
        folder.write_status(state="running", epochs=settings.epochs, threads=torch.get_num_threads())

        self.policy = open_policy(base, settings)
        initial = model_hash(base)
        self.channels: list[Channel] = load_channels(
            config, self.policy, base, initial, folder.path, ranks, progress=progress, cache=cache, **data
        )
        self.order = self.channels[0].order
        self.num_steps = min(settings.max_steps or 1 << 62, self.order.num_steps(settings.epochs))
        self.weights = trainable(self.policy.model)
        num_trained = sum(tensor.numel() for tensor in self.weights.values())
        self.rate = settings.learning_rate or default_rate(num_trained)
        self.optimizer = make_optimizer(self.weights, settings, self.rate)
        decisive = settings.model_dump(mode="json", exclude=_HARMLESS), config.tokens.content(), initial
        fingerprint = content_hash(config.seed, *decisive, [channel.fingerprint for channel in self.channels])
        self.state = State(fingerprint=fingerprint)
        if folder.checkpoints:
            self.state = _resume(folder, self.state, self.weights, self.optimizer)
        else:
            folder.cut_metrics(0)  # removes metrics of a run that ended before its first checkpoint
        self._tell()

    def _num_threads(self) -> int:
        """Return `train.threads`, else the number that the run began with, else the idle cores."""
        # The number of threads affects how matrix products are split, and so the last bits of sums.
        wanted = self.settings.threads or self.folder.status.threads or idle_cores()
        # All processes use the number of the first, which is stored in train.json.
        agreed, _ = self.ranks.sum_values({"threads": (float(wanted if self.ranks.is_first else 0), 0.0)})["threads"]
        return int(agreed)

    def run(self, stop: Stop) -> TrainResult:
        settings, state = self.settings, self.state
        reporters = (
            [REPORTERS[name](self.folder.path, self.config.name) for name in settings.report_to]
            if self.ranks.is_first
            else []
        )
        log = Log(self.folder, reporters, state, self.order, self.progress, self.num_steps)
        watch = ChosenWatch(settings, self.rate)
        can_validate = any(channel.has_validation for channel in self.channels)
        last: dict[str, float] = {}
        while state.step < self.num_steps:
            rate = learning_rate(state.step, self.num_steps, settings, self.rate)
            log.add(self.update(rate), rate)
            state.step += 1  # from here on the number of finished updates
            is_last = state.step == self.num_steps
            if is_last or state.step % settings.log_every_n_steps == 0:
                last = log.write()
                self._note(watch.add(last))
            is_better = False
            is_due = self.order.ends_period(state.step, settings.val_check_interval)
            if can_validate and (is_last or is_due):
                last |= log.write_line("validation", self.validate())
                watch.add_validation(last)
                is_better = judge(state, last, settings)
            # All processes agree: a signal to one of them stops all.
            is_asked = self.ranks.any(stop.signal_number is not None)
            if settings.save_every is not None:
                is_due = state.step % settings.save_every == 0
            if is_last or is_asked or is_better or is_due:
                self.save()
            if is_asked and not is_last:
                message = f"stopped after step {state.step} of {self.num_steps}; continue with --resume"
                raise Stopped(message, stop.signal_number or signal.SIGTERM)
            if settings.early_stop and watch.has_warned:
                self._note(f"stopped early after step {state.step}: train.early_stop")
                if not (is_last or is_better or is_due):
                    self.save()
                break
            if state.num_bad_validations >= (settings.early_stopping_patience or 1 << 62):
                self._note(f"stopped early: no better {settings.metric} since step {state.best_step}")
                break
        self._note(watch.finish())
        for reporter in reporters:
            reporter.close()
        return self.finish(last)

    def update(self, rate: float) -> Sums:
        """One update: gradients of every part of every channel add up, then the weights move."""
        policy, step, weights = self.policy, self.state.step, self.weights.values()
        if self.settings.dump_batches > step:
            self.dump("step")
        policy.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        # Parts of the loss are already divided by the total of the whole batch: they add up, and need no count.
        sums: Sums = {"loss": (0.0, 0.0)}
        for channel in self.channels:
            items = channel.order.batch(step)
            total = channel.total(items)
            channel.prepare(policy, items, self.ranks)
            for part in channel.parts(items, self.ranks):
                loss, measured = channel.loss(policy, part, total)
                if loss.requires_grad:
                    (channel.weight * loss).backward()
                measured[f"trained_tokens/{channel.name}"] = measured.pop("trained_tokens")
                add(sums, {**measured, "loss": (channel.weight * float(loss.detach()), 0.0)})
        self.ranks.sum_gradients(weights)
        sums, trained = self.ranks.sum_values(sums), self.state.trained_tokens
        for channel in self.channels:  # for the ledger
            count, _ = sums.pop(f"trained_tokens/{channel.name}", (0.0, 0.0))
            trained[channel.name] = trained.get(channel.name, 0) + round(count)
        loss_value = sums["loss"][0]
        norm = clip_gradients(weights, self.settings.max_grad_norm)
        # Not `>`: a loss of NaN must stop the run as well.
        if not (loss_value <= self.settings.max_loss and norm < float("inf")):
            raise BadLoss(
                f"step {step + 1}: loss {loss_value:.4g}, gradient norm {norm:.4g}: stopped before the update; "
                f"the batch is in {self.dump('bad')}. Try a lower learning rate, or look at the batch"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return {**sums, "loss": (loss_value, 1.0), "grad_norm": (norm, 1.0)}

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return loss and metrics of all held-out items, with the names of training prefixed by `eval_`."""
        self.policy.model.eval()
        sums: Sums = {}
        loss = 0.0
        for channel in self.channels:
            items = channel.validation
            total = channel.total(items)
            channel.prepare(self.policy, items, self.ranks)
            channel_sums: Sums = {"loss": (0.0, 0.0)}
            for part in channel.parts(items, self.ranks):
                value, measured = channel.loss(self.policy, part, total)
                add(channel_sums, {**measured, "loss": (float(value), 0.0)})
            channel_sums = self.ranks.sum_values(channel_sums)
            loss += channel.weight * channel_sums.pop("loss")[0]
            add(sums, channel_sums)
        self.policy.model.train()
        for name in ("num_tokens", "trained_tokens"):
            sums.pop(name, None)
        return means({"loss": (loss, 1.0), **sums}, "eval_")

    def save(self) -> None:
        state, place = self.state, self.folder.path / "checkpoints"
        if self.ranks.is_first:
            save_checkpoint(place, state, self.weights, self.optimizer)
            remove_old(place, keep=best_steps(state, self.settings))
        best = {"best_step": state.best_step, "best_metric": state.best_metric, "best_epoch": None}
        if state.best_step:
            best["best_epoch"] = self.order.locate(state.best_step - 1)[0]
        self.folder.write_status(step=state.step, **best)
        self.ranks.wait()

    def finish(self, last: dict[str, float]) -> TrainResult:
        """Save the best weights according to validation, else the last."""
        state, settings, folder = self.state, self.settings, self.folder
        best = folder.path / "checkpoints" / f"step-{state.best_step or state.step:08}"
        # The model has the weights of the last step; load others only if an earlier step was better.
        if state.best_step not in (None, state.step) and best.exists():
            load_weights(best, self.weights)
        name = "adapter" if settings.finetuning_type == "lora" else "model"
        self.policy.restore_attention()
        if self.ranks.is_first:
            options = token_options(self.config, self.base)
            template = None
            if options.chat_template is not None:
                template = choose_template(str(options.tokenizer), options.chat_template)
            name = save_model(self.policy.model, folder.path, base=self.base, settings=settings, chat_template=template)
            # Anchor turns are not counted: the ledger has one outcome per turn, here that of the pairs.
            counted = [channel for channel in self.channels if channel.name != "anchor"]
            write_trained(folder.path, counted, state.step)
        self.ranks.wait()
        folder.write_status(
            state="completed",
            model=name,
            step=state.step,
            best_step=state.best_step,
            trained_tokens=state.trained_tokens,
        )
        return TrainResult(model=folder.path / name, num_steps=state.step, metrics=last, best_step=state.best_step)

    def dump(self, name: str) -> Path:
        """Write the exact batch of this step."""
        step, batch = self.state.step, {}
        for channel in self.channels:
            items = channel.order.batch(step)
            data = channel.data
            ids, trees = [data.ids[item] for item in items], [data.tree(item) for item in items]
            weights = data.weights[items].tolist()
            signals = [{"weights": data.token_weights(item), **channel.signals(item)} for item in items]
            if channel.reference is not None:
                for own, tree in zip(signals, trees, strict=True):
                    own["reference_logprobs"] = channel.reference.of([tree])
            teacher_trees = getattr(channel, "teacher_trees", None)
            teachers = [None] * len(items) if teacher_trees is None else teacher_trees(items)
            batch[channel.name] = ids, trees, weights, signals, teachers
        return self.folder.write_batch(name, step, batch)

    def _note(self, note: str | None) -> None:
        """Add a note of the run to train.json and to the progress."""
        if note is not None:
            self.folder.write_status(notes=[*self.folder.status.notes, note])
            self.progress({"kind": "note", "note": note})

    def _tell(self) -> None:
        """Report notes before the first update, in train.json and in the progress."""
        notes = [] if self.policy.can_share else [f"prompts are computed for each side: {self.policy.why_not}"]
        notes += [note for channel in self.channels for note in (*channel.notes, *describe_losses(channel))]
        self.folder.write_status(
            num_steps=self.num_steps,
            step=self.state.step,
            notes=notes,
            steps_per_epoch=self.order.steps_per_epoch,
            counts={channel.name: channel.counts for channel in self.channels},
            fingerprint=self.state.fingerprint,
            tokens=self.config.tokens.content(),
            where=self.settings.where,
        )
        for note in notes:
            self.progress({"kind": "note", "note": note})


def describe_losses(channel: Channel) -> list[str]:
    """Describe what a channel does not train, or trains incompletely: refusals by reason, dropped content."""
    refused = {name.replace("refused: ", ""): count for name, count in channel.counts.items() if "refused: " in name}
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in refused.items())
    total = sum(refused.values())
    notes = [f"{channel.name}: {total:,} records are refused: {reasons}"] if total else []
    for name in LOSSES.values():
        if count := channel.counts.get(name):
            notes.append(f"{channel.name}: {count:,} sequences {name.replace('_', ' ')}: see pairwright tokens show")
    if count := channel.counts.get("truncated"):
        notes.append(f"{channel.name}: {count:,} sequences are cut at the limit of their length; see tokens.max_length")
    if count := channel.counts.get("too_unlikely"):
        notes.append(
            f"{channel.name}: {count:,} tokens have weight 0: their probability is below train.min_probability"
        )
    if (count := channel.counts.get("last_turns_left_out")) and channel.name == "dpo":
        notes.append(
            f"dpo: {count:,} rejected sides differ before their last turn, which has weight 0 (train.dpo.contrast)"
        )
    for name in UNUSED:
        if count := channel.counts.get(f"{name}_unused"):
            notes.append(f"{channel.name}: {count:,} runs have {name}, which are not used")
    return notes


def _resume(folder: RunFolder, fresh: State, weights: dict[str, Any], optimizer: Any) -> State:
    place = folder.checkpoints[-1]
    state = read_state(place)
    if state.fingerprint != fresh.fingerprint:
        raise CheckpointError(
            f"{place}: made with another configuration, model or data: use the same ones, or another -o"
        )
    load_weights(place, weights)
    load_optimizer(place, optimizer)
    folder.cut_metrics(state.step)
    return state


def idle_cores() -> int:
    """Return the number of idle cores: two threads on one core are far slower than one."""
    # Cores that this process may use, minus the load of the last minute.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    idle = cores - round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else cores
    return max(1, min(cores, idle))
