"""What the controller costs by itself: a null engine, a null trainer, and everything that is between them.

    python benchmarks/controller.py [--reward none|pool] [--in-flight 64 4096] [--seconds 3] [--repeats 3] [--profile]

The engine answers at once with 64 tokens and their log-probs, the trainer drops what it gets and raises the version.
Prompts are encoded and completions decoded with a real tokenizer. Each repeat measures every in-flight count in turn,
so that a change in the machine's load meets all of them; medians and their ratio are printed. ``cpu us`` is CPU time of
the controller process per sample, without that of reward workers: it does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pluggy

from areal_lit.contracts import InferenceBackend, Process, ProcessSpec, Source
from areal_lit.hookspecs import HookSpecs
from areal_lit.logs import Logs
from areal_lit.prompts import PromptStream
from areal_lit.rewarding import Rewarding, Scorer
from areal_lit.rollout import Rollout, RolloutDefaults, RolloutLoop
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Completion, Example, GenerateRequest, ModelSpec, Sampling, WeightSource
from areal_lit_rewards.exact_match import ExactMatch
from areal_lit_workflows.single_turn import SingleTurn

NUM_TOKENS = 64
SAMPLES_PER_GROUP = 8


class NullEngine(InferenceBackend):
    """Answers all requests of a tick of the event loop together, in the next one."""

    def __init__(self) -> None:
        self.version = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._token_ids = np.random.default_rng(0).integers(8, 56, NUM_TOKENS)
        self._logprobs = np.full(NUM_TOKENS, -1.0, np.float32)

    def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Sequence[ProcessSpec]:
        return ()

    async def connect(self, processes: Sequence[Process]) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer)
        future = loop.create_future()
        self._waiting.append(future)
        await future
        return Completion(
            token_ids=self._token_ids.copy(), logprobs=self._logprobs.copy(),
            versions=np.full(NUM_TOKENS, self.version, np.int64), stop_reason="stop",
        )  # fmt: skip

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def update_weights(self, source: WeightSource) -> None: ...

    async def pause(self, mode: str) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...


def measure(in_flight: int, reward: str, seconds: float, profile: cProfile.Profile | None) -> tuple[float, float]:
    """(samples/s, CPU microseconds per sample) with this many samples in flight."""
    groups = max(1, in_flight // SAMPLES_PER_GROUP)
    settings = Rollout(
        groups_per_step=max(1, groups // 2), samples_per_group=SAMPLES_PER_GROUP, max_concurrent=groups,
        max_staleness=3,
        sampling=Sampling(max_new_tokens=NUM_TOKENS),
    )  # fmt: skip
    manager = pluggy.PluginManager("areal_lit")
    manager.add_hookspecs(HookSpecs)
    manager.register(RolloutDefaults(settings))
    source = Source(
        examples=[Example(prompt=f"what is {i} + {i}?", fields={"answer": str(2 * i)}) for i in range(10_000)]
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rewards = {"default": ExactMatch()} if reward == "pool" else {}
        scorer = Scorer(Rewarding(), rewards=rewards, in_process=False, log_dir=directory, logs=Logs())
        scorer.start()
        stack.callback(scorer.stop)
        engine = NullEngine()
        rollouts = RolloutLoop(
            settings, stream=PromptStream({"data": source}, seed=0), sources={"data": source}, backend=engine,
            codec=TextCodec(tiny_spec(directory)), workflow=SingleTurn(), score=scorer.score,
            reward=rewards.get("default"), filters=(), hooks=manager.hook, seed=0, deterministic=False,
        )  # fmt: skip
        rollouts.start()
        stack.callback(rollouts.stop)
        scorer.wait_ready()
        step = _steps(rollouts, engine, 0, 0.5)
        with _profiled(rollouts, profile):
            cpu, start = time.process_time(), time.perf_counter()
            last = _steps(rollouts, engine, step, seconds)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - start
    samples = (last - step) * settings.groups_per_step * SAMPLES_PER_GROUP
    return samples / wall, cpu / samples * 1e6


def _steps(rollouts: RolloutLoop, engine: NullEngine, step: int, seconds: float) -> int:
    """Train on nothing for a while; the step reached."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        rollouts.next_batch(step)
        step += 1
        engine.version = step
        rollouts.set_version(step)
        rollouts.metrics()
    return step


def _profiled(rollouts: RolloutLoop, profile: cProfile.Profile | None) -> AbstractContextManager[Any]:
    """Profile the event loop's thread."""
    if profile is None:
        return nullcontext()

    async def switch(is_on: bool) -> None:
        profile.enable() if is_on else profile.disable()

    rollouts.run(switch(True), timeout_s=10, what="the profiler")
    stack = ExitStack()
    stack.callback(lambda: rollouts.run(switch(False), timeout_s=60, what="the profiler"))
    return stack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", choices=["none", "pool"], default="none")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 4096])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print where the event loop's time goes, slows it down")
    arguments = parser.parse_args()
    profile = cProfile.Profile() if arguments.profile else None
    results: dict[int, list[tuple[float, float]]] = {in_flight: [] for in_flight in arguments.in_flight}
    for _ in range(arguments.repeats):
        for in_flight, measured in results.items():
            measured.append(measure(in_flight, arguments.reward, arguments.seconds, profile))
    print(f"reward: {arguments.reward}; completions of {NUM_TOKENS} tokens, groups of {SAMPLES_PER_GROUP}")
    print(f"{'in flight':>10} {'samples/s':>10} {'cpu us':>8}")
    medians = {n: tuple(statistics.median(column) for column in zip(*m, strict=True)) for n, m in results.items()}
    for in_flight, (rate, cpu) in medians.items():
        print(f"{in_flight:>10} {rate:>10.0f} {cpu:>8.1f}")
    first, last = arguments.in_flight[0], arguments.in_flight[-1]
    print(f"cost per sample, {last} in flight against {first}: {medians[last][1] / medians[first][1]:.2f} times (CPU)")
    if profile is not None:
        profile.print_stats("tottime")


if __name__ == "__main__":
    main()
