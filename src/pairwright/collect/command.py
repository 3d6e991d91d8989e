"""A verifier command: the case as JSON on its standard input, the verdict as its exit code or as JSON on its output.

No shell is involved. The command runs in a session of its own, and all of it is ended when its time is over.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collect.failures import ScorerError, one_line
from pairwright.config import ScorerConfig
from pairwright.messages import Json

MAX_OUTPUT_BYTES = 2**20
_NOT_FOUND_OR_KILLED = 126  # what shells and wrappers return when the program itself did not run


class CommandScorer:
    """Runs the command for a case; at most so many at once."""

    def __init__(self, config: ScorerConfig, *, folder: Path | None = None) -> None:
        self.name = f"scorer {config.command[0]}"
        self._config, self._folder = config, folder
        self._slots = asyncio.Semaphore(config.max_concurrency)

    async def score(self, case: Json) -> Any:
        """What the command said: a number, an object with a score, or None."""
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
            process = await asyncio.create_subprocess_exec(
                *self._config.command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd=self._folder
            )
        except OSError as error:
            raise ScorerError(f"{self.name}: cannot be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                _, output, complaint = await asyncio.gather(
                    _feed(process.stdin, data), _read(process.stdout), _read(process.stderr)
                )
                code = await process.wait()
        except TimeoutError:
            raise ScorerError(f"{self.name}: took longer than {self._config.timeout_seconds:g} s") from None
        finally:
            await _end(process)
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
    """All output, or None if it is more than a verdict can be; the rest is read and dropped so that nothing blocks."""
    assert stream is not None
    kept = bytearray()
    while chunk := await stream.read(65_536):
        if len(kept) <= MAX_OUTPUT_BYTES:
            kept += chunk
    return bytes(kept) if len(kept) <= MAX_OUTPUT_BYTES else None


async def _end(process: asyncio.subprocess.Process) -> None:
    """End what is left of the command's session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise ScorerError(f"the scorer's processes cannot be ended: {one_line(error)}") from None
    await process.wait()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
