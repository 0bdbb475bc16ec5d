"""Network: a Hugging Face causal LM on packed batches, with what objectives ask of it.

Shapes: T packed tokens, P positions given to the model, R loss tokens, S segments, D hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from areal_lit.token_batch import TokenBatch, TokenOutputs
from areal_lit_single.attention import PACKED, VARLEN, install
from areal_lit_single.layout import Layout, bucketed, padded
from areal_lit_single.logprobs import token_logprobs
from areal_lit_single.prefixes import shared_prefixes

Attention = Literal["auto", "packed", "varlen", "padded"]
log = logging.getLogger(__name__)


class Network(nn.Module):
    """A causal LM whose log-probs, entropies and values are aligned with the batch: index t speaks of token t.

    Log-probs and entropies are computed at loss tokens only and are 0 elsewhere, a segment's first token included.
    ``value_T[t]`` is read from the state before token t (0 at a segment's first), ``final_value_S`` from the last one.

    Args:
        lm: a model in eval mode, on its device.
        scalar_head: for value and score heads; None for log-probs.
        attention: ``packed``: one SDPA call per run of equally long segments; a prompt that segments of a group share
            is read once. ``varlen``: flash attention (CUDA). ``padded``: the model's own attention on a padded batch,
            for models that keep other state. ``auto``: ``varlen`` for half precision on CUDA, else ``packed``;
            ``padded`` if the model does not agree with itself then, which is checked once.
    """

    def __init__(self, lm: nn.Module, *, scalar_head: nn.Linear | None = None, attention: Attention = "auto") -> None:
        super().__init__()
        self.lm = lm
        self.scalar_head = scalar_head
        self.logit_scale = 1.0
        self.is_packed = self.shares_prompts = False
        self._current = install(lm)
        self._choose(attention)

    @property
    def device(self) -> torch.device:
        return self.lm.get_input_embeddings().weight.device

    def forward(self, batch: TokenBatch, outputs: Collection[str]) -> TokenOutputs:
        """Outputs on this network's device for a batch on the CPU."""
        layout = self._layout(batch)
        is_first_T = batch["position"] == 0
        hidden_PD = self.hidden(batch["token"], layout)
        before_T = layout.place_T.roll(1)
        logprob_T = entropy_T = value_T = final_value_S = None
        if "logprob" in outputs or "entropy" in outputs:
            row_R = (batch["loss_mask"] & ~is_first_T).nonzero()[:, 0]
            scale_R = self._scale(batch, row_R)
            logprob_R, entropy_R = self.logprobs(
                hidden_PD[before_T[row_R].to(self.device)], batch["token"][row_R], scale_R, "entropy" in outputs
            )
            row_R = row_R.to(self.device)
            zeros_T = logprob_R.new_zeros(batch.num_tokens)
            logprob_T = zeros_T.index_copy(0, row_R, logprob_R) if "logprob" in outputs else None
            entropy_T = None if entropy_R is None else zeros_T.index_copy(0, row_R, entropy_R)
        if "value" in outputs:
            value_T, final_value_S = self._values(hidden_PD, batch, layout.place_T, is_first_T)
        return TokenOutputs(logprob_T=logprob_T, entropy_T=entropy_T, value_T=value_T, final_value_S=final_value_S)

    def _layout(self, batch: TokenBatch) -> Layout:
        if not self.is_packed:
            return padded(batch["length"])
        return bucketed(batch["length"], *shared_prefixes(batch)) if self.shares_prompts else bucketed(batch["length"])

    def hidden(self, token_T: Tensor, layout: Layout) -> Tensor:
        """Final hidden states at the layout's positions, [P, D]."""
        layout_there = layout.to(self.device)
        ids_P, position_P = layout.tokens(token_T).to(self.device), layout_there.position_P
        if self.is_packed:
            self._current.set(layout_there)
            inputs: dict[str, Any] = {"input_ids": ids_P[None], "position_ids": position_P[None]}
        else:
            shape = (layout.buckets[0].num_rows, layout.buckets[0].length) if layout.buckets else (0, 0)
            mask_P = (layout_there.source_P >= 0).long()
            inputs = {"input_ids": ids_P.view(shape), "attention_mask": mask_P.view(shape)}
        return self.lm.base_model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)

    def logprobs(
        self, hidden_RD: Tensor, target_R: Tensor, scale_R: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs of the targets and entropies at these states; the scale is one over the temperature, [R]."""
        head = self.lm.get_output_embeddings()
        return token_logprobs(
            hidden_RD, head.weight, head.bias, target_R.to(self.device), scale_R.to(self.device), entropy=entropy
        )

    def _scale(self, batch: TokenBatch, row_R: Tensor) -> Tensor:
        if "temperature" not in batch:
            return torch.full(row_R.shape, self.logit_scale)
        temperature_R = batch.to_tokens(batch["temperature"])[row_R]
        if bool((temperature_R <= 0).any()):
            raise ValueError(
                f"log-probs need a temperature > 0, got {float(temperature_R.min())}; greedy samples have no "
                "distribution to train on: sample with a temperature, or mask them out of the loss"
            )
        return self.logit_scale / temperature_R

    def _values(
        self, hidden_PD: Tensor, batch: TokenBatch, place_T: Tensor, is_first_T: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert self.scalar_head is not None
        state_P = self.scalar_head(hidden_PD.to(self.scalar_head.weight.dtype))[:, 0]
        value_T = state_P[place_T.roll(1).to(self.device)].masked_fill(is_first_T.to(self.device), 0.0)
        last_S = place_T[batch["length"].cumsum(0) - 1].to(self.device)
        return value_T, state_P[last_S]

    # --- choosing an attention that agrees with the model's own -----------------------------------------------

    def _choose(self, attention: Attention) -> None:
        own = self.lm.config._attn_implementation
        probe_T = torch.tensor([1, 2, 3, 4, 1, 2, 3, 5, 6]) * 7919 % self.lm.config.get_text_config().vocab_size
        length_S = torch.tensor([4, 5])
        with torch.no_grad():
            expected_TV = torch.cat([self._own_logits(ids) for ids in probe_T.split(length_S.tolist())])
            for choice in self._candidates(attention):
                reason = self._try(choice, own, probe_T, length_S, expected_TV)
                if not reason:
                    log.info("%s: %s attention", type(self.lm).__name__, choice)
                    return
                self.lm.set_attn_implementation(own)
                if attention != "auto" or choice == "padded":
                    raise ValueError(f"{type(self.lm).__name__} cannot be trained with {choice} attention: {reason}")
                log.warning("%s: no %s attention (%s)", type(self.lm).__name__, choice, reason)

    def _candidates(self, attention: Attention) -> tuple[Attention, ...]:
        if attention != "auto":
            return (attention,)
        is_half = self.lm.dtype in (torch.bfloat16, torch.float16)
        return ("varlen" if self.device.type == "cuda" and is_half else "packed", "padded")

    def _own_logits(self, ids: Tensor) -> Tensor:
        return self.lm(input_ids=ids[None].to(self.device), use_cache=False).logits[0].float()

    def _try(self, choice: Attention, own: str, probe_T: Tensor, length_S: Tensor, expected_TV: Tensor) -> str:
        """Why this attention is wrong for the model, empty if it is right. Sets the logit scale."""
        self.is_packed, self.shares_prompts = choice != "padded", choice == "packed"
        try:
            self.lm.set_attn_implementation({"packed": PACKED, "varlen": VARLEN, "padded": own}[choice])
            layout = self._probe_layout(length_S)
            calls = self._current.num_calls
            hidden_TD = self.hidden(probe_T, layout)[layout.place_T.to(self.device)]
        except (ValueError, NotImplementedError) as error:
            return str(error)
        if self.is_packed and self._current.num_calls == calls:
            return "the model does not attend through transformers' attention interface"
        head = self.lm.get_output_embeddings()
        ours_TV = F.linear(hidden_TD, head.weight, head.bias).float()
        precision = 1e-3 if self.lm.dtype == torch.float32 else 0.05
        tolerance = precision * float(expected_TV.abs().max())
        scale = float((ours_TV * expected_TV).sum() / ours_TV.square().sum())
        self.logit_scale = 1.0 if abs(scale - 1) < precision else scale
        difference = float((ours_TV * self.logit_scale - expected_TV).abs().max())
        if difference <= tolerance:
            return ""
        return (
            f"its logits differ by {difference:.3g} from those of each sequence alone (tolerance {tolerance:.3g}); it "
            "keeps other state than attention, or its logits are not a scaled linear map of the final hidden states"
        )

    def _probe_layout(self, length_S: Tensor) -> Layout:
        """The layout of two sequences whose first two tokens are shared, if this attention shares any."""
        if not self.is_packed:
            return padded(length_S)
        if not self.shares_prompts:
            return bucketed(length_S)
        return bucketed(length_S, torch.tensor([2, 2]), torch.tensor([0, 0]))
