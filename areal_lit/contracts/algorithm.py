"""Algorithm: from rewards to a loss, as pure tensor maths."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from areal_lit.contracts.component import Component
from areal_lit.token_batch import Dim, Objective, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.text import TextCodec
    from areal_lit.types import Example, Metric, Prompt, Trajectory

Need = Literal["proximal", "reference", "values", "entropy", "teacher", "topk", "divergence"]


class Algorithm(Component):
    """Pure tensor maths. Knows no processes, no model, no collectives.

    Once per training step the core packs all trajectories into one batch, fills the columns named in
    ``needs``, calls ``prepare`` on it, splits it into mini-batches of whole atoms, calls ``weigh`` on each,
    and has every rank take the weighted sum of what ``objectives`` return. ``prepare`` and ``weigh`` see
    the whole batch and run on the controller; objectives see one micro-batch and run on ranks. The scalar ``step`` of
    the batch is the version of the weights that the step starts from. What varies from step to step and is needed on
    ranks, such as a weight under control, is put into the batch's scalars by ``prepare`` and moved by ``end_step``.
    """

    offline: ClassVar[bool] = False
    """True: batches come from data through ``encode`` instead of rollouts."""

    @property
    def needs(self) -> frozenset[Need]:
        """Model outputs wanted beyond the current log-probs.

        ``proximal``, ``reference``, ``teacher`` and ``values`` become batch columns before ``prepare``;
        ``entropy`` asks for it in the objective's outputs. ``topk``: the teacher's ``num_topk`` likeliest tokens
        become columns, and the policy's log-probs of them an output. ``divergence``: the sum of
        ``pointwise_divergence`` over the whole vocabulary becomes an output; then the teacher lives on the policy's
        ranks.
        """
        return frozenset()

    @property
    def uses_rewards(self) -> bool:
        """Whether what it learns depends on rewards; where it does not, a run needs none, and reports what it has."""
        return not self.offline

    @property
    def columns(self) -> Mapping[str, Dim]:
        """Columns this algorithm adds to the batch, with each one's dimension: ``{"advantage": "T"}``."""
        return {}

    @property
    def heads(self) -> Mapping[str, Literal["lm", "value", "score"]]:
        """The head of each role it trains. Trained roles are exactly the keys of ``objectives()``."""
        return {"policy": "lm"}

    @property
    def num_topk(self) -> int:
        """How many of the teacher's tokens ``topk`` asks for at each position."""
        raise NotImplementedError(f"{type(self).__name__} needs topk and does not say how many tokens (num_topk)")

    def pointwise_divergence(self, logprob: Tensor, teacher: Tensor) -> Tensor:
        """What each entry of the vocabulary adds, for the need ``divergence``: a ``Divergence``."""
        raise NotImplementedError(f"{type(self).__name__} needs a divergence and does not say which")

    @abstractmethod
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        """Add what looks across samples: advantages, normalisation, whole-step selections.

        Called once per step on the controller, with the whole step in view. Metrics of the step go to
        ``step_metrics``.
        """

    @abstractmethod
    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        """Fill ``token_weight``, ``segment_weight`` or ``atom_weight``: the aggregation as weights.

        Called once per optimizer step on the controller with the whole mini-batch. The gradient is that of
        the sum of weight x value over the mini-batch, whatever the micro-batches and ranks.
        """

    @abstractmethod
    def objectives(self) -> Mapping[str, Objective]:
        """Per trained role, a function from (outputs, micro-batch) to unweighted loss values.

        Runs on ranks, on whole segments with current log-probs. No collectives, no random numbers.
        """

    def step_metrics(self, batch: TokenBatch) -> Sequence[Metric]:
        """Numbers about the prepared step, for the loggers (controller)."""
        return ()

    def is_trained(self, role: str, step: int) -> bool:
        """Whether a training step moves this role; False leaves its weights and its schedule as they are."""
        return True

    def end_step(self, metrics: Mapping[str, Metric]) -> Sequence[Metric]:
        """The step's optimizer steps are done (controller): move what is under control, report what follows.

        Args:
            metrics: those of ``step_metrics`` and of all objectives, merged over mini-batches and ranks, by full name
                (``train/kl_reference``).
        """
        return ()

    def encode(self, prompt: Prompt, codec: TextCodec) -> list[Trajectory]:
        """Offline algorithms: the trajectories of one row of data. Pairs share an ``atom``."""
        raise NotImplementedError(f"{type(self).__name__} is not offline and encodes no data")

    def check(self, example: Example) -> None:
        """Offline algorithms: raise ValueError if an example lacks what ``encode`` reads. For validation, so quick."""
