"""Scoring commands: the case as JSON on stdin, the verdict as exit code or as JSON on stdout."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collection.run_failures import ScorerError, one_line
from pairwright.config import ScorerConfig
from pairwright.records.messages import Json

MAX_OUTPUT_BYTES = 2**20
_NOT_FOUND_OR_KILLED = 126  # shells and wrappers exit with 126 or more if the program did not run or was killed


class CommandScorer:
    """Runs the command for a case; at most `max_concurrency` at once."""

    def __init__(self, config: ScorerConfig, *, folder: Path | None = None) -> None:
        self.name = f"scorer {config.command[0]}"
        self._config, self._folder = config, folder
        self._slots = asyncio.Semaphore(config.max_concurrency)

    async def score(self, case: Json) -> Any:
        """Return the verdict of the command: a number, an object with a score, or None."""
        try:
            data = msgspec.json.encode(case) + b"\n"
        except (TypeError, ValueError) as error:
            raise ScorerError(f"{self.name}: the case cannot be written as JSON: {error}") from None
        async with self._slots:
            code, output, complaint = await self._run(data)
        if code < 0 or code >= _NOT_FOUND_OR_KILLED:
            raise ScorerError(f"{self.name}: ended with {_ending(code)}: {complaint}")
        if self._config.result == "exit_code":
            return 1.0 if code == 0 else 0.0
        if code != 0:
            raise ScorerError(f"{self.name}: ended with {_ending(code)}: {complaint}")
        try:
            return msgspec.json.decode(output)
        except (ValueError, RecursionError) as error:
            raise ScorerError(f"{self.name}: its output is not JSON ({error}): {output[:200]!r}") from None

    async def _run(self, data: bytes) -> tuple[int, bytes, str]:
        pipe = asyncio.subprocess.PIPE
        try:
            # a new session, so that _end can kill the command with all its children
            process = await asyncio.create_subprocess_exec(
                *self._config.command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd=self._folder
            )
        except OSError as error:
            raise ScorerError(f"{self.name}: cannot be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                # write and read at the same time: a full pipe on either side would block both processes
                _, output, complaint = await asyncio.gather(
                    _feed(process.stdin, data), _read(process.stdout), _read(process.stderr)
                )
                code = await process.wait()
        except TimeoutError:
            raise ScorerError(f"{self.name}: took longer than {self._config.timeout_seconds:g} s") from None
        finally:
            await _end(process)
        # too much output on stdout is an error, on stderr it is not
        if output is None:
            raise ScorerError(f"{self.name}: wrote more than {MAX_OUTPUT_BYTES:,} bytes")
        return code, output, (complaint or b"").decode("utf-8", "replace").strip()[-300:]


async def _feed(stdin: asyncio.StreamWriter | None, data: bytes) -> None:
    assert stdin is not None
    try:
        stdin.write(data)
        await stdin.drain()
        stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # a command need not read its input


async def _read(stream: asyncio.StreamReader | None) -> bytes | None:
    """Return all output, or None if it exceeds the limit; reads to the end, so that the command does not block."""
    assert stream is not None
    output = bytearray()
    while chunk := await stream.read(65_536):
        if len(output) <= MAX_OUTPUT_BYTES:
            output += chunk
    return bytes(output) if len(output) <= MAX_OUTPUT_BYTES else None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill all remaining processes of the command's session."""
    try:
        # since it has its own session, the process group id of the command is its process id
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise ScorerError(f"the scorer's processes cannot be ended: {one_line(error)}") from None
    await process.wait()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
