"""Alerts of the chart: rendered only when asked for, and about metrics that the operator really exposes."""

import re
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from rendered_chart import render
from run_states import run_state
from trimtab_contract.keys import RunId
from trimtab_operator.breaker import BreakerSettings
from trimtab_operator.oversight import Oversight
from trimtab_operator.run_state import Notice, NoticeKind, RunPhase
from trimtab_operator.telemetry import Telemetry

NAMESPACE = "trimtab-system"
FUNCTIONS = {"max", "sum", "by", "increase", "absent"}


def of_kind(kind: str, *values: str) -> list[dict[str, Any]]:
    return [each for each in render(*values, namespace=NAMESPACE) if each["kind"] == kind]


def exposed() -> str:
    """What a leading operator exposes that has one run and has given up one notice."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    Oversight(BreakerSettings(), telemetry=telemetry).known(RunId("lab", "demo", "uid"), run_state())
    notice = Notice(kind=NoticeKind.FAILED, id="x", time="", message="")
    telemetry.noticed(notice, delivered=False)
    return generate_latest(registry).decode()


def test_nothing_of_the_prometheus_operator_is_installed_unless_asked_for() -> None:
    kinds = {each["kind"] for each in render(namespace=NAMESPACE)}
    assert not kinds & {"PrometheusRule", "PodMonitor"}


def test_every_alert_is_about_a_metric_and_labels_that_exist() -> None:
    (rule,) = of_kind("PrometheusRule", "--set=prometheusRule.enabled=true,prometheusRule.labels.release=prometheus")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    samples = exposed()
    (group,) = rule["spec"]["groups"]
    assert len(group["rules"]) == 7
    for alert in group["rules"]:
        expression = alert["expr"]
        (name,) = set(re.findall(r"\btrimtab_\w+", expression))
        shown = re.findall(rf"^{name}(?:{{(.*)}})? ", samples, re.MULTILINE)
        assert shown, f"{name} is not exposed"
        labels = {label for one in shown for label in re.findall(r'(\w+)="', one)}
        used = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        used |= set(re.findall(r'(\w+)="', expression))
        used |= set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
        assert used <= labels, f"{alert['alert']} uses labels that {name} does not have"
        for label, value in re.findall(r'(\w+)="([^"]*)"', expression):
            assert any(f'{label}="{value}"' in one for one in shown), f"{name} never has {label} {value}"
        words = set(re.findall(r"\b[a-z_]+\b(?=\s*\()", expression))
        assert words <= FUNCTIONS, words
        assert expression.count("(") == expression.count(")")


def test_the_phases_that_alerts_name_are_phases() -> None:
    (rule,) = of_kind("PrometheusRule", "--set=prometheusRule.enabled=true")
    named = re.findall(r'phase="(\w+)"', str(rule))
    assert named
    assert set(named) <= {phase.value for phase in RunPhase}


def test_the_pod_monitor_scrapes_where_the_operator_answers() -> None:
    (monitor,) = of_kind("PodMonitor", "--set=podMonitor.enabled=true")
    (deployment,) = of_kind("Deployment")
    template = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_the_webhooks_address_comes_from_a_secret_alone() -> None:
    (deployment,) = of_kind("Deployment", "--set=webhook.existingSecret=trimtab-webhook")
    environment = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    reference = environment["TRIMTAB_WEBHOOK_URL"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "trimtab-webhook", "key": "url"}
