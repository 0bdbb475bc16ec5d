"""Trainer: the loop.

    data --prompts--> admission --> workflow --> rewards --> filters --> ready queue      (rollout/, own thread)
                          ^ capacity     ^ tokens, log-probs, versions       |
                          |              |                                   v wait_batch
                      staleness      inference <-- sync_weights <-- train <-- prepare     (here, caller's thread)

The loop consumes ready groups, is blocked only in ``wait_batch`` (by rollouts) and by its own work, and
unblocks admission each time it hands the engine new weights. ``step`` counts optimizer steps whose data was
consumed; ``version`` is the step whose weights the engine holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit.activity import Activity
from areal_lit.checkpointing import Checkpoint
from areal_lit.contracts import (
    Algorithm,
    Callback,
    DataModule,
    Filter,
    InferenceBackend,
    Launcher,
    Reward,
    RunLogger,
    WeightTransport,
    Workflow,
)  # fmt: skip
from areal_lit.evaluation import Evaluation
from areal_lit.logs import Logs
from areal_lit.rewarding import Rewarding
from areal_lit.roles import Role
from areal_lit.rollout import Rollout
from areal_lit.teacher_server import TeacherServer
from areal_lit.validation import broken_rules, describe, end_rules, name_rules, place_rules
from areal_lit.weight_sync import WeightSync


class Trainer:
    """Trains a language model as its parts say. Every argument is a key of a recipe.

    Args:
        algorithm: from rewards (or data) to a loss.
        policy: the model that is trained.
        data: prompts, or rows for offline algorithms.
        launcher: what starts the processes.
        max_steps: training steps; None goes on until the data ends.
        inference: where tokens come from; not for offline algorithms.
        transport: how weights reach the engine.
        workflow: one episode; sources of a mixture may bring their own.
        reward: scores trajectories; sources of a mixture may bring their own. What learns without rewards (pure
            distillation) needs one for evaluations only.
        rollout: how many prompts and samples, how far off-policy, with what deadlines.
        rewarding: the pool of processes that rewards run in.
        sync: when weights are handed over and how that is checked.
        reference: a frozen model for KL penalties or preference losses.
        critic: a value model.
        teacher: a frozen model to learn from, on ranks.
        teacher_server: the same behind an inference engine of its own.
        filters: which complete groups are worth training on.
        evaluation: held-out sets and when to run them.
        checkpoint: when to save, how many to keep.
        logs: how much is kept of what processes print.
        loggers: where numbers go; by default metrics.csv, samples.jsonl and plots in the run's directory.
        callbacks: objects with hook implementations; by default a progress display.
        num_minibatches: optimizer steps per training step, each on a share of its data.
        seed: of data order, sampling and initialisation.
        deterministic: repeat bit for bit: fixed order, fixed slots, no staleness.
        call_timeout_s: longest a single call to a rank may take.
        name: of the run's directory below ``runs_dir``.
        runs_dir: where runs are kept.
        overwrite: delete a run of the same name, once this one has begun, instead of refusing to start.
        template_kwargs: passed to the chat template (``enable_thinking: false``).
    """

    def __init__(
        self,
        *,
        algorithm: Algorithm,
        policy: Role,
        data: DataModule,
        launcher: Launcher,
        max_steps: int | None = None,
        inference: InferenceBackend | None = None,
        transport: WeightTransport | None = None,
        workflow: Workflow | None = None,
        reward: Reward | None = None,
        rollout: Rollout,
        rewarding: Rewarding | None = None,
        sync: WeightSync | None = None,
        reference: Role | None = None,
        critic: Role | None = None,
        teacher: Role | None = None,
        teacher_server: TeacherServer | None = None,
        filters: Sequence[Filter] = (),
        evaluation: Evaluation | None = None,
        checkpoint: Checkpoint | None = None,
        logs: Logs | None = None,
        loggers: Sequence[RunLogger] | None = None,
        callbacks: Sequence[Callback] | None = None,
        num_minibatches: int = 1,
        seed: int = 0,
        deterministic: bool = False,
        call_timeout_s: float = 1800.0,
        name: str = "run",
        runs_dir: str = "runs",
        overwrite: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.policy = policy
        self.data = data
        self.launcher = launcher
        self.max_steps = max_steps
        self.inference = inference
        self.transport = transport
        self.workflow = workflow
        self.reward = reward
        self.rollout = rollout
        self.rewarding = rewarding or Rewarding()
        self.sync = sync or WeightSync()
        self.reference = reference
        self.critic = critic
        self.teacher = teacher
        self.teacher_server = teacher_server
        self.filters = tuple(filters)
        self.evaluation = evaluation or Evaluation()
        self.checkpoint = checkpoint or Checkpoint()
        self.logs = logs or Logs()
        self.loggers = loggers
        self.callbacks = callbacks
        self.num_minibatches = num_minibatches
        self.seed = seed
        self.deterministic = deterministic
        self.call_timeout_s = call_timeout_s
        self.name = name
        self.runs_dir = runs_dir
        self.overwrite = overwrite
        self.template_kwargs = template_kwargs
        self.config: Mapping[str, Any] = {}
        self.step = 0
        self.activity = Activity()

    def fit(self, *, resume: str | None = None) -> Path:
        """Train to the end and return the run's directory.

        Args:
            resume: ``auto`` goes on from this run's newest whole checkpoint (from the start if there is none), ``best``
                from the best of ``checkpoint.best``; a path goes on from that one, or the newest of that run.

        Raises:
            BrokenRules: what ``validate`` lists, a ValueError.
            NothingToTrain: the checkpoint is where the run ends, a ValueError.
            ProcessDied: a rank or an engine ended or hung.
            CheckpointError: a checkpoint could not be written, for example to a full disk.
            KeyboardInterrupt: interrupted; the steps taken are saved.
        """
        from areal_lit.run.running import running

        with running(self, resume=resume) as run:
            while not run.is_done:
                with run.phase("wait_batch"):
                    groups = run.next_batch()
                if groups is None:
                    break
                with run.phase("prepare"):
                    batch = run.prepare(groups)
                with run.phase("train"):
                    run.train(batch)
                    self.step += 1
                is_evaluation_due = run.should("evaluate")
                if run.should("sync_weights") or (is_evaluation_due and run.is_engine_behind):
                    with run.phase("sync_weights"):
                        run.sync_weights()
                if is_evaluation_due:
                    with run.phase("evaluate"):
                        run.evaluate()
                run.end_step(groups)
                if run.should("checkpoint"):
                    with run.phase("checkpoint"):
                        run.save()
        return run.path

    def evaluate(self, *, checkpoint: str | None = None) -> dict[str, float]:
        """Metrics of every evaluation set, for the model the recipe names or another.

        Args:
            checkpoint: ``best`` or ``auto`` (the newest) of this recipe's run, a path to one of any run, a run's
                directory (its newest one), or a Hugging Face model directory, which then is the policy.
        """
        from areal_lit.run.running import evaluating

        with evaluating(self, checkpoint=checkpoint) as run:
            return run.evaluate()

    def validate(self, *, resume: str | None = None) -> list[str]:
        """Every broken rule, and why ``fit(resume=...)`` could not use its directory or go on. Starts nothing."""
        of_run = (*place_rules(self, resume), *name_rules(self, resume), *end_rules(self, resume))
        return [*broken_rules(self), *of_run]

    def describe(self) -> list[str]:
        """What would be started where."""
        return describe(self)
