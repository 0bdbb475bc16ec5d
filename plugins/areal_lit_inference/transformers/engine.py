"""Engine: continuous batching over slots, one token per active sequence and step.

    submit ──▶ waiting ──prefill: one forward for all new prompts──▶ slots 0..n-1 ──decode──▶ Finished
                                                                       ▲       │ a token each
                                                                       └───────┘

Sequences join and leave between steps; the active slots stay a prefix. Urgent ones come first, and find a slot when
all others are taken. Weights change only while no sequence is active, so every token of a ``Finished`` was drawn with
the version it carries.

Shapes: n active slots, P new prompts, T their packed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Items

import numpy as np
import torch
from torch import Tensor

from areal_lit.types import FloatArray, StopReason, TensorInfo
from areal_lit_inference.transformers.model import ServedModel
from areal_lit_inference.transformers.rows import Finished, Rows, Sequence
from areal_lit_inference.transformers.sampling import SamplingRows, draw, uniform
from areal_lit_inference.transformers.scoring import Asked, Scores, packs, score
from areal_lit_inference.transformers.slots import LENGTH_BLOCK, Decode, Prefill, Span, pack
from areal_lit_inference.transformers.spans import SORT_EVERY, SPAN_COST, plan_spans, should_sort
from areal_lit_inference.transformers.stopping import Stopping
from areal_lit_inference.transformers.waiting import Waiting

TORN = "a weight update failed half-way; nothing is served until one succeeds"


class Engine:
    """Draws tokens for many sequences at once.

    Args:
        served: the model.
        stopping: what ends a completion.
        max_slots: sequences decoded together at most, not counting urgent ones.
        max_prefill_tokens: prompt tokens of one prefill at most, unless a single prompt has more.
        deterministic: a sequence's numbers do not depend, to the last bit, on which others are served: every step
            runs all slots, cache lengths come in whole blocks, every prompt is prefilled on its own. Slower.
        version: of the weights the model was loaded with; None refuses to generate until the first ``load``.
        span_cost: see ``plan_spans``.
    """

    def __init__(
        self, served: ServedModel, *, stopping: Stopping, max_slots: int, max_prefill_tokens: int,
        deterministic: bool = False, version: int | None = None, span_cost: int = SPAN_COST,
    ) -> None:  # fmt: skip
        self.served = served
        self.stopping = stopping
        self.waiting = Waiting(max_slots=max_slots, max_prefill_tokens=max_prefill_tokens)
        self.num_slots = self.waiting.num_slots
        self.max_prefill_tokens = max_prefill_tokens
        self.deterministic = deterministic
        self.version = version
        self.span_cost = span_cost
        self.is_torn = False
        self.cache = served.new_cache(self.num_slots)
        self.rows = Rows(self.num_slots)
        self._donors: dict[bytes, Sequence] = {}
        self._sampling: SamplingRows | None = None
        self._steps_unsorted = 0

    @property
    def num_active(self) -> int:
        return len(self.rows)

    def submit(self, sequence: Sequence) -> Finished | None:
        """Queue a sequence; one that cannot be served comes back at once."""
        if refusal := self._refusal(sequence):
            return Finished.refused(sequence.number, refusal)
        self.waiting.add(sequence)
        return None

    def _refusal(self, sequence: Sequence) -> str:
        if self.is_torn:
            return f"RuntimeError: {TORN}"
        if self.version is None:
            return "RuntimeError: no weights are confirmed yet: update_weights must succeed before generate"
        refusal = sequence.refusal(self.served)
        return refusal and f"ValueError: {refusal}"

    def cancel(self, numbers: Collection[int]) -> None:
        """Forget sequences that nobody waits for any more."""
        self.waiting.forget(numbers)
        self._remove([s.slot for s in self.rows.sequences if s.number in numbers])

    @torch.inference_mode()
    def step(self, *, admit: bool = True) -> list[Finished]:
        """Start what waits for a slot, then draw a token per active sequence. Returns those that ended."""
        finished = self._admit() if admit and self.waiting else []
        if self.num_active:
            finished += self._decode()
        return finished

    def interrupt(self) -> list[Finished]:
        """End every active sequence with what it has. Its keys and values are not kept."""
        slots = range(self.num_active)
        partial = [self._finished(slot, "interrupted") for slot in slots]
        self._remove(slots)
        self.flush_cache()
        return partial

    def flush_cache(self) -> None:
        """Share no keys and values computed so far with sequences yet to come."""
        self._donors.clear()

    def load(self, version: int, tensors: Iterable[tuple[str, Tensor]], manifest: Items[TensorInfo] = ()) -> None:
        """Take new weights while no sequence is active; a no-op for the version the engine holds.

        Raises ValueError for weights that do not fit. Whatever it raises once the first tensor may have been
        copied, nothing is served until a whole update has succeeded.
        """
        assert not self.num_active, "interrupt or drain before loading weights"
        if version == self.version and not self.is_torn:
            return
        if manifest:
            self.served.check_names(manifest)
        self.flush_cache()
        self.served.load(self._watched(tensors))
        self.is_torn = False
        self.version = version

    def _watched(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for named in tensors:
            self.is_torn = True
            yield named

    # --- joining ----------------------------------------------------------------------------------

    def _admit(self) -> list[Finished]:
        """Fill free slots. Equal prompts are computed once, also when one of them runs already."""
        prompts = self.waiting.take(self.num_active, self._donors)
        if not prompts:
            return []
        self._sampling = None
        for key in [key for key in prompts if key in self._donors]:
            self._join(self._donors[key], prompts.pop(key))
        return self._prefill(list(prompts.values())) if prompts else []

    def _join(self, donor: Sequence, members: list[Sequence]) -> None:
        """Start members from a running sequence's prompt; the next decode step feeds the prompt's last token."""
        length = len(donor.token_ids) - 1
        first = self.num_active
        for member in members:
            self.rows.add(member, length=length, last=int(member.token_ids[-1]))
        self.cache.reserve(self.num_active, length)
        self.cache.copy([donor.slot] * len(members), range(first, self.num_active), length)

    def _prefill(self, groups: list[list[Sequence]]) -> list[Finished]:
        first = self.num_active
        groups.sort(key=lambda members: len(members[0].token_ids))
        for member in (member for members in groups for member in members):
            self.rows.add(member, length=len(member.token_ids))
        self.cache.reserve(self.num_active, len(groups[-1][0].token_ids))
        packs = [[members] for members in groups] if self.deterministic else [groups]
        logits_PV = torch.cat([self._prompt_logits(groups) for groups in packs])
        prompt_n = torch.tensor([i for i, members in enumerate(groups) for _ in members], device=self.served.device)
        sampling = self._gather_sampling(first)
        if not self.deterministic:
            self._donors.update({members[0].prompt_key: members[0] for members in groups})
        return self._draw(logits_PV[prompt_n], sampling, first)

    def _prompt_logits(self, groups: list[list[Sequence]]) -> Tensor:
        """Fill the members' slots and return the logits after each group's prompt, [P, V]."""
        device = self.served.device
        lengths = [len(members[0].token_ids) for members in groups]
        token_1T = torch.from_numpy(np.concatenate([members[0].token_ids for members in groups])).to(device)[None]
        position_1T = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device)[None]
        documents = pack(lengths, [[m.slot for m in members] for members in groups], device)
        hidden_TD = self.served.hidden(token_1T, position_1T, Prefill(self.cache, documents))[0]
        return self.served.project(hidden_TD[torch.tensor(lengths, device=device).cumsum(0) - 1])

    # --- decoding ---------------------------------------------------------------------------------

    def _decode(self) -> list[Finished]:
        rows, device = self.rows, self.served.device
        spans = self._plan_spans()
        n = spans[-1].stop
        self.cache.reserve(n, max(span.length for span in spans))
        token_n1 = torch.from_numpy(rows.last[:n, None]).to(device)
        length_n = torch.from_numpy(rows.length[:n]).to(device)
        plan = Decode(self.cache, length_n, spans)
        logits_nV = self.served.logits(token_n1, length_n[:, None], plan)[: self.num_active, 0]
        rows.length[: self.num_active] += 1
        if self._sampling is None:
            self._sampling = self._gather_sampling(0)
        return self._draw(logits_nV, self._sampling, 0)

    def _plan_spans(self) -> list[Span]:
        """What each slot reads in this step; now and then the slots are sorted, longest first, to read less."""
        rows, n = self.rows, self.num_active
        if self.deterministic:
            rows.length[n:] = rows.last[n:] = 0
            blocks = int(rows.length[:n].max()) // LENGTH_BLOCK + 1
            return [Span(first=0, stop=self.num_slots, length=blocks * LENGTH_BLOCK)]
        spans = plan_spans(rows.length[:n], self.span_cost)
        self._steps_unsorted += 1
        if self._steps_unsorted >= SORT_EVERY and should_sort(rows.length[:n], spans, self.span_cost):
            order_n = np.argsort(-rows.length[:n], kind="stable")
            self.cache.permute(order_n.tolist(), int(rows.length[:n].max()))
            rows.permute(order_n)
            self._sampling = None
            self._steps_unsorted = 0
            spans = plan_spans(rows.length[:n], self.span_cost)
        return spans

    def _gather_sampling(self, first: int) -> SamplingRows:
        options = [sequence.sampling for sequence in self.rows.sequences[first:]]
        return SamplingRows.gather(options, self.served.vocab_size, self.served.device)

    def _draw(self, logits_nV: Tensor, sampling: SamplingRows, first: int) -> list[Finished]:
        """Draw for the slots from ``first`` on, and free those that ended."""
        rows = self.rows
        active = slice(first, len(rows))
        noise_n = torch.from_numpy(uniform(rows.noise[active], rows.length[active])).to(self.served.device)
        drawn_n, logprob_n = draw(logits_nV, sampling, noise_n)
        token_n, logprobs_n = drawn_n.cpu().numpy(), logprob_n.cpu().numpy()
        self._require_finite(logprobs_n)
        rows.record(first, token_n, logprobs_n)
        reasons = self.stopping.ended(rows, first, token_n)
        if not reasons:
            return []
        finished = [self._finished(slot, reason) for slot, reason in reasons.items()]
        self._remove(reasons)
        return finished

    def _require_finite(self, logprobs: FloatArray) -> None:
        """Raise FloatingPointError where log-probs of tokens that were drawn or given are no numbers."""
        if not np.isfinite(logprobs).all():
            raise FloatingPointError(
                f"log-probs under version {self.version} of the weights must be finite, got "
                f"{logprobs[~np.isfinite(logprobs)][0]}: the weights are finite, so the model's numbers grow beyond "
                f"{self.served.model.dtype}. Serve it in another dtype (bfloat16 and float32 reach furthest), or, if "
                "training blew the weights up, lower the learning rate and go on from an earlier checkpoint"
            )

    def _finished(self, slot: int, reason: StopReason) -> Finished:
        assert self.version is not None, "sequences are only admitted under a version"
        return self.rows.finished(slot, self.version, reason)

    @torch.inference_mode()
    def _remove(self, slots: Collection[int]) -> None:
        if not slots:
            return
        for sequence in [self.rows.sequences[slot] for slot in slots]:
            if self._donors.get(sequence.prompt_key) is sequence:
                del self._donors[sequence.prompt_key]
        sources, targets = self.rows.remove(slots)
        if sources:
            self.cache.copy(sources, targets, int(self.rows.length[targets].max()))
        self._sampling = None

    # --- scoring ----------------------------------------------------------------------------------

    def refusal_to_score(self, asked: Asked) -> str:
        """Why a sequence cannot be scored, as "Type: message"; empty if it can."""
        if self.is_torn:
            return f"RuntimeError: {TORN}"
        refusal = asked.refusal(self.served)
        return refusal and f"ValueError: {refusal}"

    def score(self, asked: Items[Asked]) -> list[Scores]:
        """Log-probs of given sequences, none of them refused, in the order asked, under the weights it holds.

        Raises FloatingPointError for log-probs that are no numbers.
        """
        answers: dict[int, Scores] = {}
        for members in packs(asked, 0 if self.deterministic else self.max_prefill_tokens):
            answers |= zip(members, score(self.served, [asked[index] for index in members]), strict=True)
        for answer in answers.values():
            self._require_finite(answer.logprobs)
        return [answers[index] for index in range(len(asked))]
