"""What the author of these plugins runs: areal-lit's conformance suites on each of them."""

from __future__ import annotations

from types import SimpleNamespace

from areal_outside.algorithm import Rewarmed
from areal_outside.callback import Tally
from areal_outside.reward import Digits
from areal_outside.transport import Spool

from areal_lit.testing import check_algorithm, check_callback, check_reward, check_transport
from areal_lit.testing.reward import completion


def test_rewarmed_conforms():
    check_algorithm(Rewarmed())


def test_digits_conforms():
    cases = [
        (completion("1234", answer="1234"), 1.0),
        (completion("1239", answer="1234"), 0.75),
        (completion("", answer="1234"), 0.0),
    ]
    check_reward(Digits(), cases)


def test_spool_conforms(tmp_path):
    check_transport(Spool(directory=str(tmp_path)), tmp_path)


def test_tally_conforms(tmp_path):
    trainer = SimpleNamespace(name="run", runs_dir=str(tmp_path), step=0, max_steps=2)
    checkpoint = tmp_path / "run" / "checkpoint"
    checkpoint.mkdir(parents=True)
    check_callback(lambda: Tally(rank_file=str(tmp_path / "marks.txt")), checkpoint, trainer=trainer)
