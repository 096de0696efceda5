"""The other shipped policies: what each catches, what it leaves alone, and that all of them fit a job as it comes."""

import math
from typing import Any

import pytest
from judged_runs import record
from library_policies import LIBRARY, NAMES, acts, curve, manifest, metric, run, shipped, strongest
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.reach import reach
from trimtab_policies.rules import Action

STREAM_RECORDS, REPLICA_CHECK_EVERY = 2_000, 50
"""What a job has unless it says otherwise."""


def gammas(count: int, clipped: dict[int, range], heads: int = 64) -> list[MetricRecord]:
    """qk_clip_gamma of 4 layers: 0.9 for the heads that are clipped at a step, else 1."""
    shape = (4, heads // 4)
    return [
        record(
            step,
            vectors={
                "qk_clip_gamma": Vector.pack(
                    shape, [0.9 if step in clipped.get(head, ()) else 1.0 for head in range(heads)]
                )
            },
        )
        for step in range(1, count + 1)
    ]


def logits(values: list[float]) -> list[MetricRecord]:
    """qk_max_logit of 2 layers with 4 heads: 5 everywhere but in layer 1 head 2."""
    return [
        record(step, vectors={"qk_max_logit": Vector.pack((2, 4), [value if head == 6 else 5.0 for head in range(8)])})
        for step, value in enumerate(values, 1)
    ]


def loads(count: int, first: float) -> list[MetricRecord]:
    """expert_load of one layer with 8 experts, as multiples of the even share; that of expert 3 is given."""
    even = [1.0] * 8
    even[3] = first
    return [record(step, vectors={"expert_load": Vector.pack((1, 8), even)}) for step in range(501, 501 + count)]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_is_valid_and_fits_a_job_that_keeps_the_defaults(name: str) -> None:
    spec = shipped(name).spec
    assert max(reach(rule) for rule in spec.rules) <= STREAM_RECORDS
    assert spec.remediation.margin >= REPLICA_CHECK_EVERY
    assert manifest(name)["metadata"]["name"] == name


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_has_its_tests_beside_it_and_is_explained(name: str) -> None:
    assert (LIBRARY / f"{name}.test.yaml").is_file()
    page = (LIBRARY.parents[1] / "docs" / "policy-library.md").read_text()
    assert f"## `{name}`" in page
    assert [rule.name for rule in shipped(name).spec.rules if f"`{rule.name}`" not in page] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_no_shipped_policy_but_the_classic_one_acts_on_a_healthy_loss(name: str, seed: int) -> None:
    done = strongest(acts([shipped(name)], run(curve(2000, seed))))
    assert done in {None, Action.RECORD} or name == "classic"


def test_observe_has_the_rules_of_default_and_acts_on_nothing() -> None:
    observe, default = shipped("observe").spec, shipped("default").spec
    assert observe.rules == default.rules
    assert observe.remediation == default.remediation
    records = [*run(curve(300)), *(record(step, loss=math.nan, nonfinite=1) for step in range(301, 305))]
    assert strongest(acts([shipped("observe")], records)) is Action.RECORD


def test_default_and_its_companions_can_guard_one_job_together() -> None:
    together = [shipped(name) for name in ("default", "muonclip", "moe")]
    records = [*run(curve(300)), record(301, loss=math.nan, nonfinite=1)]
    assert acts(together, records)[301] == (Action.ROLLBACK, "non-finite")


class TestMuonClip:
    def test_one_head_clipped_twenty_records_running_is_notified(self) -> None:
        found = acts([shipped("muonclip")], gammas(40, {17: range(5, 41)}))
        assert found[24] == (Action.NOTIFY, "qk-clip-sustained")

    def test_more_than_one_head_in_a_hundred_and_at_least_eight_are_notified(self) -> None:
        some, many = ({head: range(1, 41, 2) for head in range(count)} for count in (7, 8))
        alternating = {head: range(2 if head < 8 else 1, 41, 2) for head in range(16)}
        assert acts([shipped("muonclip")], gammas(40, some)) == {}
        assert acts([shipped("muonclip")], gammas(40, many)) == {}
        assert acts([shipped("muonclip")], gammas(40, alternating))[20] == (Action.NOTIFY, "qk-clip-widespread")

    def test_clipping_at_half_of_the_steps_is_recorded(self) -> None:
        found = acts([shipped("muonclip")], gammas(110, {3: range(1, 111, 2)}))
        assert found == {99: (Action.RECORD, "qk-clip-share")}

    def test_a_logit_on_its_way_to_the_threshold_is_notified_with_its_head(self) -> None:
        found = acts([shipped("muonclip")], logits([20.0] * 60 + [20.0 + step for step in range(60)]))
        [(step, act)] = [(step, act) for step, act in found.items() if act[0] is Action.NOTIFY]
        assert act == (Action.NOTIFY, "qk-logit-growth")
        assert 90 < step < 100

    def test_a_logit_that_is_high_and_steady_is_not_notified(self) -> None:
        assert strongest(acts([shipped("muonclip")], logits([60.0] * 200))) is Action.RECORD

    def test_a_logit_that_clipping_does_not_bring_back_pauses(self) -> None:
        found = acts([shipped("muonclip")], logits([95.0] * 60 + [160.0] * 10))
        assert found[65] == (Action.PAUSE, "qk-logit-runaway")


class TestFp16:
    def test_overflows_one_by_one_are_everyday(self) -> None:
        skipped = [float(step <= 16 or step % 60 == 0) for step in range(1, 1001)]
        assert acts([shipped("fp16")], metric("skipped_update", skipped)) == {}

    def test_overflow_at_more_than_one_step_in_twenty_is_notified(self) -> None:
        skipped = [float(step > 300 and step % 15 == 0) for step in range(1, 601)]
        [found] = acts([shipped("fp16")], metric("skipped_update", skipped)).values()
        assert found == (Action.NOTIFY, "skipped-updates-share")

    def test_twenty_updates_skipped_in_a_row_roll_back(self) -> None:
        skipped = [float(step > 300) for step in range(1, 401)]
        assert acts([shipped("fp16")], metric("skipped_update", skipped))[320] == (
            Action.ROLLBACK,
            "skipped-updates-in-a-row",
        )

    def test_a_loss_scale_at_its_floor_rolls_back(self) -> None:
        scales = [4096.0 / 2 ** max(0, step - 300) for step in range(1, 330)]
        assert acts([shipped("fp16")], metric("loss_scale", scales))[314] == (Action.ROLLBACK, "loss-scale-floor")

    def test_a_loss_scale_that_stays_low_is_notified(self) -> None:
        found = acts([shipped("fp16")], metric("loss_scale", [1024.0] * 300 + [64.0] * 40))
        assert found == {320: (Action.NOTIFY, "loss-scale-low")}

    def test_an_overflow_that_default_would_roll_back_is_left_to_the_loss_scale(self) -> None:
        records = [
            *run(curve(300)),
            record(301, loss=1.5, nonfinite=12, skipped_update=1),
            record(302, loss=1.5, nonfinite=0),
        ]
        assert acts([shipped("default")], records)[301][0] is Action.ROLLBACK
        assert strongest(acts([shipped("fp16")], records)) in {None, Action.RECORD}


class TestMixtureOfExperts:
    def test_experts_that_stay_dead_are_notified(self) -> None:
        assert acts([shipped("moe")], metric("dead_experts", [2.0] * 600))[550] == (Action.NOTIFY, "dead-experts")
        assert acts([shipped("moe")], metric("dead_experts", [0.0, 0.0, 1.0] * 300)) == {}

    def test_one_expert_without_tokens_is_notified(self) -> None:
        assert acts([shipped("moe")], loads(120, 0.0)) == {600: (Action.NOTIFY, "expert-starved")}
        assert acts([shipped("moe")], loads(120, 0.2)) == {}

    def test_one_expert_with_too_many_tokens_is_notified(self) -> None:
        assert acts([shipped("moe")], loads(60, 9.0)) == {550: (Action.NOTIFY, "expert-overloaded")}

    def test_a_router_that_sharpens_is_notified_and_one_that_collapses_pauses(self) -> None:
        assert acts([shipped("moe")], metric("router_entropy", [0.2] * 60, first=501)) == {
            550: (Action.NOTIFY, "router-entropy-low")
        }
        assert acts([shipped("moe")], metric("router_entropy", [0.01] * 30)) == {20: (Action.PAUSE, "router-collapse")}


class TestStrict:
    def test_it_acts_on_a_rise_that_default_leaves_alone(self) -> None:
        noise = [0.01 * (step % 3) for step in range(200)]
        records = [record(step, loss=2.0 + more + (0.3 if step > 100 else 0)) for step, more in enumerate(noise, 1)]
        assert strongest(acts([shipped("default")], records)) is None
        assert acts([shipped("strict")], records)[103] == (Action.ROLLBACK, "loss-spike")

    def test_a_gradient_norm_that_runs_ahead_of_the_loss_is_notified(self) -> None:
        norms = [0.24 + 0.01 * (step % 3) for step in range(200)] + [0.95, 2.4, 15.9, 145.0]
        found = acts([shipped("strict")], metric("grad_norm", norms))
        assert found == {204: (Action.NOTIFY, "grad-norm-spike")}

    def test_clipping_at_most_steps_is_notified(self) -> None:
        ratios = [0.5 if step % 5 else 1.0 for step in range(400)]
        [found] = acts([shipped("strict")], metric("clip_ratio", ratios, first=1001)).values()
        assert found == (Action.NOTIFY, "grad-clip-share")


class TestClassic:
    @pytest.mark.parametrize(
        ("bad", "act"),
        [
            ({"loss": 9.0}, (Action.PAUSE, "loss-spike")),
            ({"loss": math.nan}, (Action.STOP, "loss-non-finite")),
            ({"loss": 2.0, "nonfinite": 3.0}, (Action.STOP, "non-finite")),
        ],
    )
    def test_it_does_what_the_table_says(self, bad: dict[str, Any], act: tuple[Action, str]) -> None:
        records = [*run([2.0, 2.1] * 100), record(201, **bad)]
        assert acts([shipped("classic")], records) == {201: act}

    def test_clipped_heads_pause(self) -> None:
        assert acts([shipped("classic")], gammas(30, {7: range(1, 31)}, heads=128))[20] == (
            Action.PAUSE,
            "qk-clip-sustained",
        )
        assert acts([shipped("classic")], gammas(3, {7: range(2, 3), 9: range(2, 3)}, heads=128)) == {
            2: (Action.PAUSE, "qk-clip-widespread")
        }
