"""Thresholds proposed from healthy logs keep on fresh records what their evidence promises."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import msgspec
import pytest
import yaml
from library_policies import shipped
from trimtab_contract.metrics import Vector
from trimtab_policies.backtest import judge_log
from trimtab_policies.calibration import LogEvidence, LogSurvey, NothingToPropose, Proposal, manifest, propose
from trimtab_policies.calibration.manifest import action_of
from trimtab_policies.calibration.poisson import upper_bound
from trimtab_policies.calibration.spikes import (
    FOR_RECORDS,
    SIGMAS,
    STATISTICS,
    Firings,
    Setting,
    SpikeChoice,
    choose,
    grid_policy,
)
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy, parse_policy
from trimtab_policies.rules import Action

Noise = Callable[[random.Random], float]


def normal(noise: random.Random) -> float:
    return noise.gauss()


def heavy(noise: random.Random) -> float:
    """One record in fifty stands out by itself, by as much as twenty deviations."""
    return noise.gauss() + (noise.uniform(5, 20) if noise.random() < 0.02 else 0.0)


def losses(count: int, kind: Noise = normal, seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [3.0 + 0.01 * kind(noise) for _ in range(count)]


def points(values: Iterable[float], name: str = "loss") -> Iterator[LogPoint]:
    for step, value in enumerate(values, 1):
        yield LogPoint(step=step, scalars={name: value}, line=step)


def survey(log: Iterable[LogPoint], name: str = "run") -> LogEvidence:
    following = LogSurvey(name, [shipped("default")])
    for point in log:
        following.take(point)
    return following.evidence()


def logits(
    largest: Callable[[int], float], records: int = 1_200, gamma: float = 1.0, name: str = "qk_max_logit"
) -> Iterator[LogPoint]:
    """Four heads, of which the last is the largest."""
    for step in range(1, records + 1):
        top = largest(step)
        maxima = Vector.pack((2, 2), [0.25 * top, 0.5 * top, -1.0, top])
        clip = Vector.pack((2, 2), [1.0, 1.0, 1.0, gamma if step == 700 else 1.0])
        yield LogPoint(step=step, scalars={}, vectors={name: maxima, "qk_clip_gamma": clip}, line=step)


def quiet(records: int) -> dict[Setting, Firings]:
    """So many records on which no setting fired."""
    settings = (Setting(*one) for one in product(STATISTICS, SIGMAS, FOR_RECORDS))
    return {setting: Firings(0, records, records) for setting in settings}


def policy_of(proposal: Proposal) -> AcceptedPolicy:
    content = yaml.safe_load(manifest(proposal))
    spec = parse_policy(content["spec"])
    return AcceptedPolicy.of(spec, kind=content["kind"], namespace=None, name="calibrated", uid="c", generation=1)


def alarms_per_10000(policy: AcceptedPolicy, values: Sequence[float]) -> float:
    return judge_log([policy], points(values)).alarms_per_10000_records


@pytest.fixture(scope="module")
def of_normal() -> Proposal:
    return propose([survey(points(losses(3_000)))], 50)


@pytest.fixture(scope="module")
def of_heavy() -> Proposal:
    return propose([survey(points(losses(3_000, heavy)))], 50)


def test_the_bound_is_the_exact_one_of_the_poisson_distribution() -> None:
    assert upper_bound(0, 0.95) == pytest.approx(-math.log(0.05))
    for events in (1, 3, 40, 2_000):
        mean = upper_bound(events, 0.95)
        terms = (count * math.log(mean) - mean - math.lgamma(count + 1) for count in range(events + 1))
        assert math.fsum(map(math.exp, terms)) == pytest.approx(0.05, rel=1e-6)


def test_the_chosen_setting_keeps_its_bound_on_fresh_normal_noise(of_normal: Proposal) -> None:
    (choice,) = of_normal.spikes
    assert choice.supported
    assert choice.firings.bound <= 50
    assert alarms_per_10000(policy_of(of_normal), losses(20_000, seed=1)) <= choice.firings.bound


def test_the_next_more_sensitive_sigma_would_break_the_target(of_normal: Proposal) -> None:
    (choice,) = of_normal.spikes
    evidence = survey(points(losses(3_000))).spikes["loss"]
    for one in choice.candidates:
        assert evidence[one.setting].bound <= 50
        below = Setting(one.setting.statistic, one.setting.sigma - 1, one.setting.for_records)
        assert below not in evidence or evidence[below].bound > 50


def test_heavy_tails_make_a_rule_that_lone_records_do_not_fire(of_normal: Proposal, of_heavy: Proposal) -> None:
    (choice,), (plain,) = of_heavy.spikes, of_normal.spikes
    assert choice.setting.for_records > 1
    assert choice.setting.excursion > plain.setting.excursion
    assert alarms_per_10000(policy_of(of_heavy), losses(20_000, heavy, seed=1)) <= choice.firings.bound


def test_what_is_counted_is_what_the_engine_would_fire_with_that_setting() -> None:
    values = losses(1_500, heavy, seed=3)
    counts = survey(points(values)).spikes["loss"]
    for setting in (Setting("Mean", 3, 1), Setting("Median", 3, 2), Setting("Mean", 3, 2), Setting("Median", 5, 1)):
        rule = {
            "name": "spike",
            "metric": "loss",
            "spike": {"baseline": {"statistic": setting.statistic}, "sigma": setting.sigma},
            "forRecords": setting.for_records,
            "afterSteps": 200,
            "action": "Notify",
        }
        spec = parse_policy({"rules": [rule]})
        policy = AcceptedPolicy.of(spec, kind="GuardPolicy", namespace=None, name="one", uid="u", generation=1)
        assert counts[setting].events == judge_log([policy], points(values)).counts.notify
    assert counts[Setting("Mean", 3, 1)].events > counts[Setting("Mean", 3, 2)].events > 0


def test_a_target_that_so_few_records_cannot_show_is_said_to_be_unsupported() -> None:
    (choice,) = propose([survey(points(losses(2_000)))], 0.1).spikes
    assert not choice.supported
    assert choice.firings.events == 0
    judged = 1_800
    assert choice.firings.records == judged
    assert choice.firings.bound == pytest.approx(10_000 * -math.log(0.005) / judged)
    assert choice.steps_missing == round(-math.log(0.005) / 1e-5) - judged


@pytest.mark.parametrize(
    ("metric", "records", "target", "action"),
    [
        ("loss", 600_000, 0.1, Action.ROLLBACK),
        ("loss", 500_000, 0.1, Action.NOTIFY),
        ("loss", 60_000, 1.0, Action.ROLLBACK),
        ("loss", 40_000, 2.0, Action.NOTIFY),
        ("grad_norm", 600_000, 0.1, Action.NOTIFY),
    ],
)
def test_a_rule_rolls_back_only_where_its_bound_is_shown_and_low(
    metric: str, records: int, target: float, action: Action
) -> None:
    choice = choose(metric, [quiet(records)], target)
    assert isinstance(choice, SpikeChoice)
    assert action_of(choice) is action


def test_one_firing_more_than_the_target_allows_ends_the_descent() -> None:
    counts = quiet(600_000) | {Setting("Mean", 6, 1): Firings(1, 600_000, 600_000)}
    choice = choose("loss", [counts], 0.1)
    assert isinstance(choice, SpikeChoice)
    families = {(one.setting.statistic, one.setting.for_records): one.setting.sigma for one in choice.candidates}
    assert families.pop(("Mean", 1)) == 7
    assert set(families.values()) == {3}


def test_a_metric_that_fires_at_every_setting_gets_no_rule() -> None:
    counts = {setting: Firings(50, 20_000, 20_000) for setting in quiet(1)}
    assert choose("loss", [counts], 0.1) == "loss: every setting up to 10 deviations and 5 records fires too often"


def test_a_record_stands_for_the_steps_since_the_one_before_it_and_one_behind_a_gap_for_one() -> None:
    every = list(points(losses(1_500)))
    sparse = [msgspec.structs.replace(one, step=5 * one.step + (10_000 if one.step > 900 else 0)) for one in every]
    (choice,) = propose([survey(iter(sparse))], 0.1).spikes
    records = choice.firings.records
    assert records == 1_450
    assert choice.firings.steps == 5 * (records - 1) + 1
    assert choice.firings.bound == pytest.approx(10_000 * -math.log(0.005) / choice.firings.steps)


def test_a_log_that_is_too_short_is_refused_with_the_number_it_lacks() -> None:
    with pytest.raises(NothingToPropose, match=r"loss: 900 records could be judged and at least 1,000 are needed"):
        propose([survey(points(losses(1_100)))], 1)


def test_several_logs_are_counted_together_and_apart() -> None:
    logs = [survey(points(losses(800, seed=seed)), f"run-{seed}") for seed in range(2)]
    (choice,) = propose(logs, 0.1).spikes
    assert choice.firings.records == 1_200
    assert [one.records for one in choice.by_log] == [600, 600]


def test_the_same_logs_give_the_same_policy(of_normal: Proposal) -> None:
    assert manifest(propose([survey(points(losses(3_000)))], 50)) == manifest(of_normal)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({500: math.nan}, r"broken is not healthy: loss is nan at step 501 \(line 501\)"),
        (dict.fromkeys(range(500, 600), 9.0), r"broken is not healthy: loss-\S+ of policy default would have called"),
    ],
    ids=["nan", "divergence"],
)
def test_a_log_that_is_not_healthy_is_refused(damage: dict[int, float], reason: str) -> None:
    values = losses(1_300)
    for index, value in damage.items():
        values[index] = value
    with pytest.raises(NothingToPropose, match=reason) as caught:
        propose([survey(points(losses(1_300)), "sound"), survey(points(values), "broken")], 1)
    assert len(caught.value.reasons) == 1


def test_the_threshold_is_the_quantile_with_its_margin_and_no_healthy_logit_exceeds_the_rules() -> None:
    noise = random.Random(5)
    proposal = propose([survey(logits(lambda step: 40 * (1 - math.exp(-step / 50)) + noise.gauss(0, 1)))], 0.1)
    choice = proposal.logits
    assert choice is not None
    assert choice.quantile == pytest.approx(43, rel=0.05)
    assert 1.5 * choice.quantile <= choice.tau <= 1.65 * choice.quantile
    assert choice.largest <= choice.high < choice.runaway
    policy = policy_of(proposal)
    fresh = judge_log([policy], logits(lambda _: 40 + noise.gauss(0, 1)))
    assert not fresh.counts.record
    assert not fresh.counts.alarms
    away = judge_log([policy], logits(lambda step: 40 if step < 600 else 40 + 2.0 * (step - 600), 800))
    assert {event.rule for event in away.events} >= {"qk-logit-growth-calibrated", "qk-logit-runaway-calibrated"}


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (lambda: logits(lambda _: 40.0, gamma=0.9), r"run was clipped: qk_clip_gamma is below 1 in 1 .* at step 700"),
        (lambda: logits(lambda _: 40.0, name="qk_max_logit_bound"), "run has only bounds"),
        (lambda: logits(lambda _: 40.0, records=900), "run is too early: it has qk_max_logit in 900 records"),
        (lambda: logits(lambda step: step / 20), "run is too early: the largest logit still grows, by 39%"),
        (lambda: logits(lambda _: math.inf), "run has logits that are not finite"),
    ],
    ids=["clipped", "bounds", "short", "growing", "infinite"],
)
def test_logits_that_show_no_threshold_are_refused_with_the_reason(
    log: Callable[[], Iterator[LogPoint]], reason: str
) -> None:
    with pytest.raises(NothingToPropose, match=reason):
        propose([survey(log())], 0.1)


def test_a_clipped_log_keeps_no_spike_rule_from_being_proposed() -> None:
    clipped = [
        LogPoint(step=point.step, scalars={"loss": loss}, vectors=point.vectors, line=point.line)
        for point, loss in zip(logits(lambda _: 40.0, gamma=0.9), losses(1_250), strict=False)
    ]
    with pytest.raises(NothingToPropose):
        propose([survey(clipped[:900])], 0.1)
    clipped += [LogPoint(step=step, scalars={"loss": 3.0}, line=step) for step in range(1_201, 1_300)]
    proposal = propose([survey(clipped)], 0.1)
    assert proposal.logits is None
    assert "was clipped" in proposal.refused[0]
    assert [choice.metric for choice in proposal.spikes] == ["loss"]


def test_long_logs_are_halved_to_within_a_block() -> None:
    evidence = survey(logits(lambda step: 40.0 if step > 1_400 else 90.0, records=2_900)).logits
    assert evidence is not None
    assert evidence.records == 2_900
    assert evidence.largest == 40.0
    assert evidence.quantile == pytest.approx(40.0, rel=0.02)


def test_a_name_of_a_log_cannot_leave_the_comments() -> None:
    proposal = propose([survey(points(losses(1_300)), "a\nkind: Secret\u2028spec: {}")], 0.1)
    assert set(yaml.safe_load(manifest(proposal))) == {"apiVersion", "kind", "metadata", "spec"}


def test_the_grid_spans_what_the_page_says() -> None:
    assert (min(SIGMAS), max(SIGMAS), FOR_RECORDS) == (3, 10, (1, 2, 3, 4, 5))
    assert len(grid_policy().spec.rules) == 2 * 2 * len(SIGMAS)
