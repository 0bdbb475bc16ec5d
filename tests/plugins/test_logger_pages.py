"""Pages: every metric has its place, similar ones share one, and files stay few."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from areal_lit_loggers.plots.pages import MAX_PAGES, PANELS_PER_PAGE, pages


def drawn(found):
    return [name for page in found for panel in page.panels for name in panel.curves]


def named(found):
    return {page.name: page for page in found}


def test_the_usual_subjects_have_a_page_each():
    found = named(
        pages([
            "rollout/reward", "rollout/sums/reward", "eval/held_out/reward", "eval/held_out/reward_ci95",
            "rollout/length", "rollout/truncated", "train/entropy", "rollout/sampled_entropy", "rollout/staleness",
            "rollout/staleness_max", "train/logprob_mismatch", "sync/probe_difference", "time/train", "time/prepare",
        ])
    )  # fmt: skip
    assert set(found) == {"reward", "length", "entropy", "staleness", "mismatch", "time", "overview"}
    (reward,) = found["reward"].panels
    assert reward.curves == {
        "rollout/reward": "training samples", "eval/held_out/reward": "eval held_out", "rollout/sums/reward": "sums"
    }  # fmt: skip
    assert reward.points == {"eval/held_out/reward"}
    assert reward.intervals == {"eval/held_out/reward": "eval/held_out/reward_ci95"}
    assert [panel.unit for panel in found["length"].panels] == ["tokens", "share"]
    assert list(found["time"].panels[0].curves.values()) == ["prepare", "train"]
    assert found["mismatch"].panels[0].style == "log"


def test_the_overview_begins_with_the_reward_and_names_things_for_people():
    (overview,) = [page for page in pages(["train/loss", "rollout/reward"]) if page.name == "overview"]
    assert [(panel.title, panel.unit) for panel in overview.panels] == [("reward", "reward"), ("loss", "loss")]


def test_the_overview_has_what_the_algorithm_learns_by_and_no_panel_of_zeros():
    names = ["eval/sums/reward", "rollout/length", "rollout/truncated", "train/teacher_divergence", "train/tokens"]
    found = named(pages(names, silent=["rollout/truncated"]))
    titles = ["reward on sums", "completion length", "divergence from the teacher"]
    assert [panel.title for panel in found["overview"].panels] == titles
    assert found["overview"].note == "always 0: rollout/truncated"
    assert set(drawn([found["overview"]])) == {"eval/sums/reward", "rollout/length", "train/teacher_divergence"}


def test_the_overview_can_be_named_or_described():
    overview, *_ = pages(["mine/[a]", "mine/b", "other/c"], overview=["mine/[a]", "other/*"])
    assert drawn([overview]) == ["mine/[a]", "other/c"]


def test_metrics_of_plugins_share_a_page_per_prefix():
    names = [f"mine/{index:02}" for index in range(PANELS_PER_PAGE + 1)] + ["rollout/metrics/turns", "bare"]
    found = named(pages(names))
    assert [len(found[name].panels) for name in ("mine", "mine_2", "rollout_metrics", "other")] == [12, 1, 1, 1]


def test_what_was_always_zero_is_named_and_not_drawn():
    (page,) = pages(["mine/errors", "mine/hits"], silent=["mine/errors"])
    assert [panel.title for panel in page.panels] == ["mine/hits"]
    assert page.note == "always 0: errors"


keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.lists(st.builds("{}/{}".format, keys, keys), max_size=100))
def test_every_metric_is_drawn_once_in_few_files_with_plain_names(metrics):
    found = pages(metrics, overview=())
    assert len(found) <= MAX_PAGES
    files = [page.name for page in found]
    assert len(set(files)) == len(files)
    assert all(file.replace("-", "_").replace("@", "_").replace("_", "a").isalnum() for file in files)
    assert all(file.isascii() and "/" not in file for file in files)
    everything = drawn(found)
    assert len(set(everything)) == len(everything)
    if "further metrics" not in found[-1].note if found else True:
        assert set(everything) == set(metrics)


def test_too_many_metrics_are_said_to_be_in_the_table():
    found = pages([f"prefix{index}/value" for index in range(100)])
    assert len(found) == MAX_PAGES
    assert found[-1].note == f"{100 - MAX_PAGES} further metrics are in metrics.csv only"
