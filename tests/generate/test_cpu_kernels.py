"""The CPU: AMX that is announced but not allowed is not used."""

import subprocess
import sys
from pathlib import Path

from pairwright.generate import cpu_kernels

TESTS = Path(__file__).resolve().parents[1]


def test_amx_that_kills_the_process_is_turned_off(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(cpu_kernels, "cpu_flags", lambda: frozenset({"amx_bf16", "avx512_bf16"}))
    # what an illegal instruction does
    monkeypatch.setattr(cpu_kernels, "_TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert cpu_kernels.guard_amx.__wrapped__() is False
    assert cpu_kernels.os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr(cpu_kernels, "_TRIAL", "print('good')")
    assert cpu_kernels.guard_amx.__wrapped__() is True
    assert "ONEDNN_MAX_CPU_ISA" not in cpu_kernels.os.environ


def test_a_process_that_ends_while_a_batcher_works_ends_quietly():
    code = (
        "import asyncio\n"
        "from generate.tiny_models import byte_tokenizer, llama\n"
        "from pairwright.generate import Batcher, Engine, Request, Sampling\n"
        "tokenizer = byte_tokenizer()\n"
        "batcher = Batcher(Engine(llama(tokenizer, context=100_000), tokenizer))\n"
        "async def main():\n"
        "    started = asyncio.Event()\n"
        "    task = asyncio.create_task(batcher.submit(Request([9, 8], Sampling(n=20)), lambda _: started.set()))\n"
        "    await started.wait()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_cpu_without_16_bit_arithmetic_is_named(monkeypatch, caplog):
    monkeypatch.setattr(cpu_kernels, "cpu_flags", lambda: frozenset({"avx2"}))
    cpu_kernels.prepare_16_bits.__wrapped__()
    assert "no 16-bit arithmetic" in caplog.text
    caplog.clear()
    monkeypatch.setattr(cpu_kernels, "cpu_flags", lambda: frozenset({"avx2", "avx512_bf16"}))
    cpu_kernels.prepare_16_bits.__wrapped__()
    assert caplog.text == ""
