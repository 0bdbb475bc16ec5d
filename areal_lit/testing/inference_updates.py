"""What the inference suite asks of pauses and of new weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from areal_lit.testing.inference_case import InferenceCase
from areal_lit.types import Completion


async def interrupted(case: InferenceCase) -> list[Completion]:
    """Results of long requests after a pause, some of them interrupted."""
    for delay_s in (0.1, 0.03, 0.01, 0.0):
        tasks = case.start(4, case.longest)
        await asyncio.sleep(delay_s)
        await case.backend.pause("interrupt")
        completions = await asyncio.gather(*tasks)
        if any(c.stop_reason == "interrupted" for c in completions):
            return completions
        await case.backend.resume()
    raise AssertionError("pause('interrupt') interrupted nothing: give a larger max_length or a slower clock")


async def check_interrupt(case: InferenceCase) -> None:
    """Partial results at once; what is left goes on after ``resume`` with the remaining budget, under new weights."""
    completions = await interrupted(case)
    await case.update()
    await case.backend.resume()
    for completion in completions:
        case.check(completion)
        size = len(completion.token_ids)
        if completion.stop_reason != "interrupted":
            continue
        assert size < case.longest, "an interrupted request has drawn its whole budget"
        prompt = np.concatenate([case.prompt, completion.token_ids])
        rest = await case.generate(min(5, case.longest - size), prompt=prompt)
        assert len(rest.token_ids) == min(5, case.longest - size), (
            "a resumed request drew another budget than it asked for"
        )
        assert (rest.versions == case.version).all(), "tokens drawn after the update carry the old version"
        case.check(rest, prompt=prompt)


async def check_pause_queues(case: InferenceCase) -> None:
    """Requests that arrive while paused wait for ``resume``."""
    await case.backend.pause("interrupt")
    waiting = asyncio.create_task(case.generate(4))
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done(), "a request that arrived while paused was served before resume"
    await case.backend.resume()
    completion = await waiting
    assert completion.stop_reason == "length", f"a request that waited ended as {completion.stop_reason!r}"
    case.check(completion)


async def check_drain(case: InferenceCase) -> None:
    """A running request ends by itself before ``pause('drain')`` returns."""
    (task,) = case.start(1, case.longest)
    await asyncio.sleep(0.03)
    await case.backend.pause("drain")
    await asyncio.wait([task], timeout=0.02)
    is_over = task.done()
    await case.backend.resume()
    completion = await task
    assert is_over, "pause('drain') returned while a request was running"
    assert completion.stop_reason == "length", f"drain must not interrupt, got {completion.stop_reason!r}"
    case.check(completion)


async def check_update_in_flight(case: InferenceCase) -> None:
    """Tokens drawn around an update carry the version they were drawn with."""
    tasks = case.start(4, case.longest)
    await asyncio.sleep(0.02)
    await case.update()
    late = await case.generate(4)
    for completion in [*await asyncio.gather(*tasks), late]:
        case.check(completion)
    assert (late.versions == case.version).all(), f"drawn after the update to {case.version}, labelled {late.versions}"


async def check_idempotent(case: InferenceCase) -> None:
    """A version the engine holds is acknowledged and not applied again."""
    await case.backend.update_weights(replace(case.publish(case.version + 1), version=case.version))
    case.check(await case.generate(6))


async def check_prefix(case: InferenceCase) -> None:
    """No prefix computed under old weights survives an update."""
    await case.generate(4)
    await case.update()
    case.check(await case.generate(4))
    await interrupted(case)
    await case.update()
    await case.backend.resume()
    case.check(await case.generate(4))
    await case.backend.flush_cache()
    case.check(await case.generate(4))
