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

from areal_lit.token_batch import Divergence, TokenBatch, TokenOutputs
from areal_lit_single.attention import PACKED, VARLEN, install
from areal_lit_single.divergence import Predictions, vocabulary_divergence
from areal_lit_single.layout import Layout, bucketed, padded
from areal_lit_single.logprobs import likeliest_tokens, token_logprobs
from areal_lit_single.prefixes import shared_prefixes

Attention = Literal["auto", "packed", "varlen", "padded"]
log = logging.getLogger(__name__)


def loss_rows(batch: TokenBatch) -> Tensor:
    """Indices of the tokens that outputs are computed at, [R]: loss tokens with a predecessor."""
    return (batch["loss_mask"] & (batch["position"] > 0)).nonzero()[:, 0]


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
        self._compared: tuple[Network, Divergence] | None = None
        self._choose(attention)

    @property
    def device(self) -> torch.device:
        return self.lm.get_input_embeddings().weight.device

    def forward(self, batch: TokenBatch, outputs: Collection[str]) -> TokenOutputs:
        """Outputs on this network's device for a batch on the CPU."""
        layout = self._layout(batch)
        hidden_PD = self.hidden(batch["token"], layout)
        found = self._values(hidden_PD, batch, layout.place_T) if "value" in outputs else {}
        if set(outputs) - {"value"}:
            row_R = loss_rows(batch)
            own = self._predictions(hidden_PD, layout, batch, row_R)
            there_R = row_R.to(self.device)
            for name, x in self._outputs_at_rows(own, batch, row_R, outputs).items():
                found[name] = x.new_zeros(batch.num_tokens, *x.shape[1:]).index_copy(0, there_R, x)
        return TokenOutputs(**found)

    @torch.no_grad()
    def predictions(self, batch: TokenBatch) -> Predictions:
        """What this network says at a batch's loss tokens, without gradient, for another to be compared with."""
        layout = self._layout(batch)
        return self._predictions(self.hidden(batch["token"], layout), layout, batch, loss_rows(batch))

    def compare_with(self, teacher: Network, divergence: Divergence) -> None:
        """Give the output ``divergence`` from now on."""
        sizes = [network.lm.get_output_embeddings().weight.shape[0] for network in (self, teacher)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"vocabularies of {sizes[0]} and {sizes[1]} entries cannot be compared entry by entry")
        self._compared = (teacher, divergence)

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

    def _outputs_at_rows(
        self, own: Predictions, batch: TokenBatch, row_R: Tensor, outputs: Collection[str]
    ) -> dict[str, Tensor]:
        """What is wanted of the distributions at these tokens, by output, [R] or [R, K]."""
        head = (own.hidden_RD, own.weight_VD, own.bias_V)
        found: dict[str, Tensor] = {}
        if "topk" in outputs and "topk_token" not in batch:
            k = int(batch.scalars["topk"])
            found["topk_token_TK"], found["topk_logprob_TK"] = likeliest_tokens(*head, own.scale_R, k)
        target_RK = batch["token"][row_R, None]
        if "topk" in outputs and "topk_token" in batch:
            found["topk_token_TK"] = batch["topk_token"][row_R].to(self.device)
            target_RK = torch.cat([target_RK, batch["topk_token"][row_R]], 1)
        if target_RK.shape[1] > 1 or not {"logprob", "entropy"}.isdisjoint(outputs):
            logprob_RK, entropy_R = token_logprobs(
                *head, target_RK.to(self.device), own.scale_R, entropy="entropy" in outputs
            )
            if "logprob" in outputs:
                found["logprob_T"] = logprob_RK[:, 0]
            if target_RK.shape[1] > 1:
                found["topk_logprob_TK"] = logprob_RK[:, 1:]
            if entropy_R is not None:
                found["entropy_T"] = entropy_R
        if "divergence" in outputs:
            assert self._compared is not None, "compare_with comes before the output divergence"
            teacher, divergence = self._compared
            found["divergence_T"] = vocabulary_divergence(own, teacher.predictions(batch), divergence)
        return found

    def _predictions(self, hidden_PD: Tensor, layout: Layout, batch: TokenBatch, row_R: Tensor) -> Predictions:
        head = self.lm.get_output_embeddings()
        place_R = layout.place_T.roll(1)[row_R].to(self.device)
        scale_R = self._scale(batch, row_R).to(self.device)
        return Predictions(hidden_RD=hidden_PD[place_R], weight_VD=head.weight, bias_V=head.bias, scale_R=scale_R)

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

    def _values(self, hidden_PD: Tensor, batch: TokenBatch, place_T: Tensor) -> dict[str, Tensor]:
        assert self.scalar_head is not None
        state_P = self.scalar_head(hidden_PD.to(self.scalar_head.weight.dtype))[:, 0]
        value_T = state_P[place_T.roll(1).to(self.device)].masked_fill((batch["position"] == 0).to(self.device), 0.0)
        last_S = place_T[batch["length"].cumsum(0) - 1].to(self.device)
        return {"value_T": value_T, "final_value_S": state_P[last_S]}

    # --- choosing an attention that agrees with the model's own -----------------------------------------------

    def _choose(self, attention: Attention) -> None:
        own = self.lm.config._attn_implementation
        probe_T = torch.tensor([1, 2, 3, 4, 1, 2, 3, 5, 6]) * 7919 % self.lm.config.get_text_config().vocab_size
        length_S = torch.tensor([4, 5])
        with torch.no_grad():
            expected_TV = torch.cat([self._own_logits(ids) for ids in probe_T.split(length_S.tolist())])
            if not bool(expected_TV.isfinite().all()):
                raise ValueError(
                    f"{type(self.lm).__name__} has logits of NaN or infinity, its weights being finite: its numbers "
                    f"grow beyond {self.lm.dtype}; look at its files, or take another dtype"
                )
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
