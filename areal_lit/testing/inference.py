"""The conformance suite every inference backend is held to.

About five lines test a backend of your own, engine processes included::

    backend = MyBackend(...)
    await backend.connect(processes)
    await check_inference(
        backend, publish=weights_of_version, reference=logprobs_under_version, prompt=token_ids, max_length=512
    )

Shapes: n tokens of one sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from areal_lit.contracts.inference import InferenceBackend
from areal_lit.testing.inference_case import InferenceCase, Publish, Reference
from areal_lit.testing.inference_updates import (
    check_drain,
    check_idempotent,
    check_interrupt,
    check_pause_queues,
    check_prefix,
    check_update_in_flight,
)
from areal_lit.types import IntArray


async def check_budget(case: InferenceCase) -> None:
    """Exactly the budget when end tokens are ignored, the reason is length, the prompt is not echoed."""
    for budget in (1, 2, 7):
        completion = await case.generate(budget, seed=budget)
        assert len(completion.token_ids) == budget, f"budget {budget}, drawn {len(completion.token_ids)}"
        assert completion.stop_reason == "length", f"the budget ended it, stop_reason is {completion.stop_reason!r}"
        assert (completion.versions == case.version).all(), (
            f"the engine holds {case.version}, labels {completion.versions}"
        )
        case.check(completion)


async def check_stop(case: InferenceCase) -> None:
    """A stop token ends the completion, is part of it, and is the reason, also on the budget's last token."""
    free = await case.generate(8, seed=5)
    stop = int(free.token_ids[4])
    expected = free.token_ids[: free.token_ids.tolist().index(stop) + 1]
    for budget in (8, len(expected)):
        stopped = await case.generate(budget, seed=5, ignore_eos=False, stop_token_ids=(stop,))
        size = len(stopped.token_ids)
        assert stopped.stop_reason == "stop", f"a stop token was drawn, stop_reason is {stopped.stop_reason!r}"
        assert size <= len(expected), f"went on {size - len(expected)} tokens after the stop token"
        assert (stopped.token_ids == expected[:size]).all(), "stopping changed what was drawn before"
        case.check(stopped)


async def check_distribution(case: InferenceCase) -> None:
    """Log-probs stand at the request's temperature, and are not renormalised by top-p and top-k unless declared."""
    for temperature in (0.5, 1.0, 1.7):
        case.check(await case.generate(6, temperature=temperature), temperature=temperature)
    if not case.backend.logprobs.after_truncation:
        case.check(await case.generate(6, top_k=3))
        case.check(await case.generate(6, top_p=0.5))


async def check_seeds(case: InferenceCase) -> None:
    """Equal seeds give equal tokens alone and in company; different seeds differ; greedy needs none."""
    alone = await case.generate(8, seed=3)
    company = await asyncio.gather(*(case.generate(8 + seed, seed=seed) for seed in range(6)))
    assert (alone.token_ids == company[3].token_ids[:8]).all(), "a request's tokens depend on its company"
    assert len({c.token_ids[:8].tobytes() for c in company}) > 1, "six different seeds drew the same tokens"
    greedy = await asyncio.gather(*(case.generate(8, seed=seed, temperature=0.0) for seed in range(3)))
    assert len({c.token_ids.tobytes() for c in greedy}) == 1, "greedy tokens depend on the seed"


async def check_refusals(case: InferenceCase) -> None:
    """An impossible request raises ValueError and hurts nobody else."""
    good = asyncio.create_task(case.generate(8))
    for prompt, budget in ((case.prompt, case.longest + 1), (np.zeros(0, np.int64), 4)):
        try:
            await case.generate(budget, prompt=prompt)
        except ValueError:
            continue
        raise AssertionError(
            f"{len(prompt)} prompt tokens + budget {budget} must raise ValueError, maximum {case.max_length}"
        )
    case.check(await good)


async def check_cancel(case: InferenceCase) -> None:
    """A request nobody waits for does not stop the others."""
    abandoned, kept = case.start(2, min(64, case.longest))
    await asyncio.sleep(0.01)
    abandoned.cancel()
    case.check(await kept)
    case.check(await case.generate(4))


async def check_urgent(case: InferenceCase) -> None:
    """A short urgent request overtakes a crowd of long ones, however many run at once."""
    crowd = case.start(64, case.longest)
    await asyncio.sleep(0)
    urgent = asyncio.create_task(case.generate(4, is_urgent=True))
    await asyncio.wait([urgent, *crowd[32:]], return_when=asyncio.FIRST_COMPLETED)
    is_first = urgent.done()
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    case.check(await urgent)
    assert is_first, "an urgent request of 4 tokens waited for the longest ones, which had come before it"


async def check_score(case: InferenceCase) -> None:
    """``score``, where there is one, agrees with the reference."""
    completion = await case.generate(6)
    sequence = np.concatenate([case.prompt, completion.token_ids])
    try:
        scored = await case.backend.score(sequence, temperature=1.0)
    except NotImplementedError:
        return
    difference = np.abs(scored - case.reference(case.version, sequence, 1.0)).max()
    assert difference <= case.tolerance, (
        f"score differs by {difference:.3g} from the reference, allowed is {case.tolerance}"
    )
    several = [sequence[:length] for length in range(1, len(sequence) + 1)]
    together = await asyncio.gather(*(case.backend.score(part, temperature=1.0) for part in several))
    for part, alone in zip(several, together, strict=True):
        gap = np.abs(alone - scored[: len(part)]).max()
        assert gap <= case.tolerance, (
            f"score of {len(part)} tokens differs by {gap:.3g} when many are asked for at once"
        )


async def check_score_topk(case: InferenceCase) -> None:
    """``score_topk``, where there is one, tells likeliest tokens in falling order, with the log-probs ``score`` has."""
    try:
        token_ids, logprobs = await case.backend.score_topk(case.prompt, k=2, temperature=1.0)
    except NotImplementedError:
        return
    shape = (len(case.prompt), 2)
    assert token_ids.shape == logprobs.shape == shape, f"score_topk must answer in shape {shape}, got {logprobs.shape}"
    assert not logprobs[0].any(), "score_topk must be 0 for the first token, which nothing precedes"
    assert (np.diff(logprobs[1:], axis=1) <= 0).all(), "score_topk must give the likeliest token first"
    for column in range(2):
        last = np.concatenate([case.prompt[:-1], token_ids[-1:, column]])
        expected = case.reference(case.version, last, 1.0)[-1]
        gap = abs(float(logprobs[-1, column] - expected))
        assert gap <= case.tolerance, f"score_topk differs by {gap:.3g} from the reference, allowed is {case.tolerance}"


async def check_close(case: InferenceCase) -> None:
    """Pending and later requests fail with ConnectionError, none waits for ever."""
    pending = asyncio.create_task(case.generate(case.longest))
    await asyncio.sleep(0)
    await case.backend.close()
    later = asyncio.create_task(case.generate(1))
    for task, name in ((pending, "pending"), (later, "later")):
        try:
            await task
        except (ConnectionError, RuntimeError):
            continue
        assert task is pending, f"a {name} request succeeded after close"


Check = Callable[[InferenceCase], Coroutine[Any, Any, None]]

CHECKS: Sequence[Check] = (
    check_budget, check_stop, check_distribution, check_seeds, check_refusals, check_interrupt, check_pause_queues,
    check_drain, check_update_in_flight, check_idempotent, check_prefix, check_cancel, check_urgent, check_score,
    check_score_topk, check_close,
)  # fmt: skip


async def check_inference(
    backend: InferenceBackend, *, publish: Publish, reference: Reference, prompt: IntArray, max_length: int,
    first_version: int = 1, refuses_first: bool = True, tolerance: float = 1e-3, timeout_s: float = 60.0,
) -> None:  # fmt: skip
    """Raise AssertionError naming every broken rule of ``InferenceBackend``. Closes the backend.

    Args:
        backend: connected, and not updated yet.
        publish: the source of a version's weights; versions count up from ``first_version`` and differ in weights.
        reference: (version, token ids, temperature) to the log-prob of every token, [n], 0 for the first.
        prompt: any tokens, at least two.
        max_length: prompt and budget together may reach it; small enough that one request ends in seconds, large
            enough that it runs for 50 ms.
        refuses_first: whether ``generate`` must be refused before the first update.
        tolerance: of log-probs.
        timeout_s: per rule; a rule that takes longer is broken.
    """
    case = InferenceCase(
        backend=backend, publish=publish, reference=reference, prompt=np.asarray(prompt, np.int64),
        max_length=max_length, tolerance=tolerance, version=first_version - 1,
    )  # fmt: skip
    if refuses_first:
        await _check_refuses_first(case, timeout_s)
    await asyncio.wait_for(case.update(), timeout_s)
    broken = [line for check in CHECKS if (line := await _broken(check, case, timeout_s))]
    if broken:
        raise AssertionError(f"{type(backend).__name__} breaks {len(broken)} rules:\n" + "\n".join(broken))


async def _broken(check: Check, case: InferenceCase, timeout_s: float) -> str:
    """What a check found, in a line; the backend goes on whatever state it was left in."""
    try:
        await asyncio.wait_for(check(case), timeout_s)
    except TimeoutError:
        found = f"not over after {timeout_s:g} s ({check.__doc__})"
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is what the report is about
        found = f"{type(error).__name__}: {error}"
    else:
        return ""
    with contextlib.suppress(ConnectionError, TimeoutError):  # a lost engine breaks the next check too
        await asyncio.wait_for(case.backend.resume(), timeout_s)
    return f"{check.__name__}: {found}"


async def _check_refuses_first(case: InferenceCase, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(case.generate(1), timeout_s)
    except (RuntimeError, ValueError):
        return
    raise AssertionError(f"{type(case.backend).__name__} generated before the first update_weights")
