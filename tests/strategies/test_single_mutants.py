"""The strategy suite fails strategies with a planted bug."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from areal_lit.testing import strategy as suite
from areal_lit.testing.strategy_case import Case
from areal_lit_single.snapshot import SingleSnapshot
from areal_lit_single.strategy import Single


class RolledLogprobs(Single):
    def forward(self, microbatches, outputs):
        rolled = super().forward(microbatches, outputs)
        return [replace(o, logprob_T=None if o.logprob_T is None else o.logprob_T.roll(-1)) for o in rolled]


class NoTemperature(Single):
    def forward(self, microbatches, outputs):
        return super().forward([b.with_columns(temperature=torch.ones(b.num_segments)) for b in microbatches], outputs)


class CrossingBorders(Single):
    def forward(self, microbatches, outputs):
        joined = [
            replace(b, columns={**b.columns, "length": torch.tensor([b.num_tokens]), "temperature": torch.ones(1)})
            for b in microbatches
        ]
        return super().forward([b.with_columns(segment=torch.zeros_like(b["segment"])) for b in joined], outputs)


class ValueAfterTheToken(Single):
    def forward(self, microbatches, outputs):
        rolled = super().forward(microbatches, outputs)
        return [replace(o, value_T=None if o.value_T is None else o.value_T.roll(-1)) for o in rolled]


class MeanOverMicrobatches(Single):
    def optimizer_step(self, microbatches, objective, outputs):
        def averaged(o, b):
            loss = objective(o, b)
            return replace(loss, values=loss.values / len(microbatches))

        return super().optimizer_step(microbatches, averaged, outputs)


class LastMicrobatchOnly(Single):
    def optimizer_step(self, microbatches, objective, outputs):
        return super().optimizer_step(microbatches[-1:], objective, outputs)


class NoEntropyGradient(Single):
    def optimizer_step(self, microbatches, objective, outputs):
        def detached(o, b):
            return objective(replace(o, entropy_T=None if o.entropy_T is None else o.entropy_T.detach()), b)

        return super().optimizer_step(microbatches, detached, outputs)


class NoClipping(Single):
    def setup(self, spec, *, optimizer=None, **keywords):
        if optimizer is not None:
            optimizer.max_grad_norm = 0
        super().setup(spec, optimizer=optimizer, **keywords)


class SchedulePerMinibatch(Single):
    def optimizer_step(self, microbatches, objective, outputs):
        metrics = super().optimizer_step(microbatches, objective, outputs)
        self.end_step()
        return metrics


class TiedTwice(Single):
    def weights(self, kind="full"):
        for bucket in super().weights(kind):
            yield [*bucket, ("lm_head.weight", dict(bucket)["model.embed_tokens.weight"])]


class OtherManifest(Single):
    def manifest(self):
        return tuple(replace(info, dtype="bfloat16") for info in super().manifest())


class OptimizerStateLost(Single):
    def _take_back(self, state):
        fresh = self._trainable.state_dict()["optimizer"]
        super()._take_back({**state, "trainable": {**state["trainable"], "optimizer": fresh}})


class ScheduleLost(Single):
    def _take_back(self, state):
        super()._take_back({**state, "trainable": {**state["trainable"], "training_step": 0}})


class SnapshotAliases(Single):
    """Its tensors are those that the next step moves."""

    def snapshot(self):
        return SingleSnapshot(self._state(), self._network, self._spec)


class ExportOfFirstWeights(Single):
    def export_hf(self, directory):
        first = Single()
        first.setup(self._spec)
        first.export_hf(directory)


class StepsOnInfinities(Single):
    def optimizer_step(self, microbatches, objective, outputs):
        metrics = super().optimizer_step(microbatches, objective, outputs)
        self._trainable.num_skipped_in_a_row = 0
        return metrics


class EvaluationMoves(Single):
    def evaluate(self, microbatches, objective, outputs):
        return super().optimizer_step(microbatches, objective, outputs)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (RolledLogprobs, suite.outputs_speak_of_their_own_token),
        (NoTemperature, suite.outputs_speak_of_their_own_token),
        (CrossingBorders, suite.outputs_speak_of_their_own_token),
        (ValueAfterTheToken, suite.values_are_of_the_state_before_the_token),
        (MeanOverMicrobatches, suite.microbatches_do_not_matter),
        (LastMicrobatchOnly, suite.microbatches_do_not_matter),
        (NoEntropyGradient, suite.gradients_match_plain_torch),
        (NoClipping, suite.gradients_match_plain_torch),
        (SchedulePerMinibatch, suite.steps_match_plain_torch),
        (TiedTwice, suite.weights_fit_their_manifest),
        (OtherManifest, suite.weights_fit_their_manifest),
        (OptimizerStateLost, suite.a_loaded_strategy_goes_on_exactly),
        (ScheduleLost, suite.a_loaded_strategy_goes_on_exactly),
        (SnapshotAliases, suite.a_snapshot_is_of_its_moment),
        (ExportOfFirstWeights, suite.an_export_is_the_same_model),
        (StepsOnInfinities, suite.non_finite_gradients_skip_the_step),
        (EvaluationMoves, suite.evaluation_leaves_everything_alone),
    ],
)
def test_a_planted_bug_is_caught(mutant: type[Single], check, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(Case(mutant, tmp_path))


def test_the_whole_suite_in_one_call(tmp_path: Path) -> None:
    suite.check_strategy(Single, tmp_path)
