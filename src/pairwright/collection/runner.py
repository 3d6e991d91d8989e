"""The runner: runs a workflow over all tasks, with bounded concurrency, time limits, recording and resume.

    RUN/experience/                  the table of all records
    RUN/collection/collection.json   identity of the collection       ledger.jsonl   runs that ended, and how
    RUN/collection/calls.jsonl       answers of unfinished runs

A run ends as done, once its records are durable, or as failed, with a kind and a message. On resume, runs that are
done are skipped and the others are repeated with the same seed: their logged answers are reused, and records that
exist already are recognised by their ids.
"""

import asyncio
import contextvars
import inspect
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

import pairwright
from pairwright.collection.agent_calls import AgentCalls
from pairwright.collection.counters import Status, Tally
from pairwright.collection.finished_runs import Entry, Ledger, Writer
from pairwright.collection.nat_files import History
from pairwright.collection.policies import Policy
from pairwright.collection.proxy.agent_endpoint import AgentEndpoint, RunAddress
from pairwright.collection.recording import Recorder, recording
from pairwright.collection.run_failures import CollectError, FailureKind, PolicyError, ScorerError, one_line
from pairwright.collection.run_policy import CallLog, RunPolicy
from pairwright.collection.scoring import FinishedRun, Scorer
from pairwright.collection.tasks import Task, run_seed
from pairwright.config import Config
from pairwright.errors import RecordError
from pairwright.records.experience import EID, Experience
from pairwright.store.table import Table

_OURS = str(Path(pairwright.__file__).parent)
Watch = Callable[[Status], None]
Workflow = Callable[..., Any]  # async, or plain
_WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class Collected:
    """The result of a collection."""

    status: Status
    experience: Path
    seconds: float
    errors: list[Entry]

    @property
    def table(self) -> Table:
        """The table of all records."""
        return Table(self.experience, create=False)

    def why_empty(self) -> str | None:
        """Return why the collection is empty (every run failed, or none recorded a candidate); None if it is not."""
        status, ledger = self.status, self.experience.parent / "collection" / "ledger.jsonl"
        if status.num_runs and not status.num_done:
            return f"all {status.num_runs:,} runs failed: look at {ledger}, then add --resume"
        if not status.num_candidates:
            return (
                f"{status.num_done:,} runs are done and recorded nothing: the workflow must record what the policy "
                "does, with step(prompt) and its candidate(answer), or with recorder.trajectory(prompt, messages); "
                "then collect into another folder"
            )
        return None


class Collection:
    """The part of a collection that one process runs: all runs that the ledger does not list as done."""

    def __init__(
        self,
        config: Config,
        output: Path,
        run_id: str,
        tasks: list[Task],
        workflow: Workflow,
        policy: Policy,
        scorer: Scorer,
        watch: Watch | None,
    ) -> None:
        self._config, self._output, self._tasks = config, output, tasks
        self._workflow, self._policy, self._scorer, self._watch = workflow, policy, scorer, watch
        # a workflow may take fewer parameters: (task, policy), or only (task)
        self._num_parameters = len(inspect.signature(workflow).parameters)
        is_async = inspect.iscoroutinefunction(workflow) or inspect.iscoroutinefunction(type(workflow).__call__)
        # a plain function may block, so it runs in a thread; one thread per concurrent run
        self._threads = None if is_async else ThreadPoolExecutor(config.collect.max_concurrency, "pairwright-workflow")
        self._endpoint = AgentEndpoint(policy.name)
        self._ledger = Ledger(output / "collection" / "ledger.jsonl")
        self._table = Table(output / "experience")
        self._writer = Writer(self._table, self._ledger)
        self._calls = CallLog(output / "collection" / "calls.jsonl", is_done=self._ledger.is_done)
        num_runs = config.collect.num_runs
        self._history = History(output, run_id, num_tasks=len(tasks), num_runs=num_runs)
        # (task, run) of this collection; the ledger may have more, from earlier settings
        self._wanted = {(task.id, run) for run in range(num_runs) for task in tasks}
        self._left = [len(tasks)] * num_runs  # tasks that have not ended, by run number
        self._known: set[str] = set()  # uids that unfinished runs of an earlier process recorded
        is_compared = num_runs * config.policy.num_candidates > 1
        self.status = Status(
            num_tasks=len(tasks),
            num_runs=len(self._wanted),
            is_compared=is_compared,
            temperature=config.policy.temperature,
        )
        self._take_stock()

    async def run(self) -> Collected:
        """Run what is not done yet; the table is complete and closed when this returns or raises."""
        watcher = asyncio.create_task(self._watch_loop()) if self._watch is not None else None
        problem: CollectError | None = None
        try:
            await self._play_all()
        except CollectError as error:
            problem = error
        finally:
            if watcher is not None:
                watcher.cancel()
            await self._writer.flush()
            self._close(problem)
        if problem is not None:
            raise problem
        errors = [entry for entry in self._entries() if entry.state == "failed"]
        return Collected(self.status, self._table.folder, self.status.seconds, errors)

    async def _play_all(self) -> None:
        settings = self._config.collect
        # all tasks of run 0, then of run 1, and so on, except those that are done; all workers take from this iterator
        todo = (
            replace(task, batch=settings.batch, run=run, seed=run_seed(self._config.seed, settings.batch, task.id, run))
            for run in range(settings.num_runs)
            for task in self._tasks
            if not self._ledger.is_done(task.id, run)
        )
        count = min(settings.max_concurrency, self.status.num_runs - self.status.num_done)

        async def work() -> None:
            for task in todo:
                await self._play(task)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(work())
        except BaseExceptionGroup as errors:  # the first error cancelled the other workers
            raise errors.exceptions[0] from None

    async def _play(self, task: Task) -> None:
        """Execute one run up to its entry in the ledger."""
        tally, started = Tally(), time.monotonic()
        score = self._scorer.step
        recorder = Recorder(
            task,
            partial(self._emit, tally),
            model_version=self._policy.name,
            score_step=None if score is None else partial(score, task),
        )
        policy = RunPolicy(
            self._policy,
            self._config.policy,
            task,
            log=self._calls,
            calls=recorder.calls,
            tally=tally,
            status=self.status,
        )
        takes_extra = bool(getattr(self._policy, "takes_extra", False))
        agent = RunAddress(self._endpoint, AgentCalls(policy, recorder, takes_extra))
        limit = self._config.collect.task_timeout_seconds
        kind: FailureKind | None = None
        message = ""
        task = replace(task, endpoint=agent)
        self.status.num_running += 1
        try:
            async with asyncio.timeout(limit) as scope:
                await self._call(task, recorder, agent)
        except Exception as error:  # any exception of the user's code fails this run only
            cause = agent.calls.failure
            error = cause if cause is not None and str(cause) in str(error) else error
            kind, message = _describe_failure(error)
            if scope.expired():
                kind, message = "timeout", f"took longer than {limit:g} s"
        finally:
            self.status.num_running -= 1
            self.status.ignored.update(agent.calls.ignored)
            await agent.close()
        entry = Entry(
            task=task.id,
            run=task.run,
            state="done" if kind is None else "failed",
            kind=kind,
            message=" ".join(message.split())[:1000],
            seconds=round(time.monotonic() - started, 3),
            num_steps=len(recorder.steps),
            num_candidates=tally.num_candidates,
            num_pairs=tally.num_pairs,
            num_scored=tally.num_scored,
            reward_sum=tally.reward_sum,
            reward_min=tally.reward_min,
            reward_max=tally.reward_max,
            reward=recorder.final_reward,
            num_tokens=tally.num_tokens,
            without_ids=dict(tally.without_ids),
        )
        # returns when the records are durable: only then does the run count as done
        await self._writer.finish(entry)
        self.status.num_ended_tokens += tally.num_prompt_tokens + tally.num_tokens
        self._finish_run(entry)

    async def _call(self, task: Task, recorder: Recorder, agent: RunAddress) -> None:

        arguments = (task, agent.calls.policy, recorder)[: self._num_parameters]
        with recording(recorder):
            if self._threads is None:
                output = await self._workflow(*arguments)
            else:
                # the thread has the context of this run, so that `step` finds its recorder
                call = partial(contextvars.copy_context().run, self._workflow, *arguments)
                output = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        agent.calls.record()
        if recorder.final_reward is None:
            if self._scorer.run is not None and any(step.unscored for step in recorder.steps):
                final = await self._scorer.run(FinishedRun(task, output, recorder.steps))
                if final is not None:
                    recorder.reward(final)
            elif agent.calls.num_calls and self._scorer.run is None and self._scorer.step is None:
                recorder.reward_from(output)
        await recorder.close()

    def close_agents(self) -> None:
        """Close the endpoint without waiting for threads of timed-out runs."""
        self._endpoint.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _emit(self, tally: Tally, prompt_hash: str, experiences: list[Experience]) -> None:
        for experience in experiences:
            tally.add(experience, prompt_hash)
            self.status.add(experience, prompt_hash)
        # a repeated run records the same ids again: skip those that the table has
        self._writer.add([item for item in experiences if item.eid.uid not in self._known])

    def _finish_run(self, entry: Entry) -> None:
        self._ledger.entries[entry.key] = entry
        status = self.status
        if entry.state == "done":
            status.num_done += 1
            status.num_silent += not entry.num_candidates
        elif entry.kind is not None:
            status.failures[entry.kind] = status.failures.get(entry.kind, 0) + 1
        # only endpoint policies count retries
        status.retries = getattr(self._policy, "retries", {})
        self._left[entry.run] -= 1
        if not self._left[entry.run]:
            self._history.update({item.key: item for item in self._entries()})
        if entry.state == "failed" and not self._config.collect.continue_on_collection_error:
            raise CollectError(
                f"task {entry.task!r}, run {entry.run} failed ({entry.kind}): {entry.message}; "
                "collect.continue_on_collection_error continues after failures, --resume tries again"
            )

    def _entries(self) -> list[Entry]:
        return [entry for key, entry in self._ledger.entries.items() if key in self._wanted]

    def _take_stock(self) -> None:
        """Restore the counters from the ledger, and load the ids that unfinished runs have recorded already."""
        done = {entry.key: entry for entry in self._entries() if entry.state == "done"}
        for entry in done.values():
            self._left[entry.run] -= 1
            self.status.add_run(entry)
            self.status.num_silent += not entry.num_candidates
        self.status.num_done = self.status.num_before = len(done)
        # rows of finished runs count towards pairs; rows of other runs are skipped when recorded again
        batch = self._config.collect.batch
        tids = {EID(batch, task.id).tid: task.id for task in self._tasks}
        columns = ["uid", "tid", "run", "step", "prompt_hash", "reward"]
        for rows in self._table.scan(where=pl.col("batch") == str(batch), columns=[*columns]):
            for uid, tid, run, step, prompt_hash, reward in zip(*rows.to_pydict().values(), strict=True):
                if (tids.get(tid), run) in done:
                    self.status.pairs.add((tid, step, prompt_hash), reward)
                else:
                    self._known.add(uid)

    async def _watch_loop(self) -> None:
        assert self._watch is not None
        while True:
            self.status.load = getattr(self._policy, "in_work", None)
            self.status.warning = getattr(self._policy, "warning", "")
            self._watch(self.status)
            await asyncio.sleep(_WATCH_SECONDS)

    def _close(self, problem: CollectError | None) -> None:
        entries = {entry.key: entry for entry in self._entries()}
        self._history.update(entries)
        num_done = self.status.num_done
        whole = num_done == self.status.num_runs
        failed = problem is not None or num_done == 0
        message = str(problem) if problem else f"{num_done} of {self.status.num_runs} runs done"
        # stopped: some runs have no entry in the ledger
        state = "failed" if failed else "completed" if len(entries) == self.status.num_runs else "stopped"
        self._history.finish(status=state, message=message, num_groups=self.status.pairs.num_groups)
        self._calls.close(all_done=whole)
        self._table.close()
        self._ledger.close()
        self.status.load = None
        if self._watch is not None:
            self._watch(self.status)


def _describe_failure(error: BaseException) -> tuple[FailureKind, str]:
    """Return kind and message of an exception in a run; errors in the user's code with file and line."""
    while isinstance(error, BaseExceptionGroup):  # as asyncio.TaskGroup raises them
        error = error.exceptions[0]
    if isinstance(error, PolicyError):
        return error.kind, str(error)
    if isinstance(error, ScorerError):
        return "scorer", str(error)
    # the innermost frame outside of this package is the user's line
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return "record" if isinstance(error, RecordError) else "workflow", f"{one_line(error)}{place}"
