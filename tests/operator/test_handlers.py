"""Kopf only wakes: no handler of ours makes it touch an object, least of all with a finalizer."""

from typing import Any, cast

import kopf
from trimtab_operator import handlers
from trimtab_operator.supervisor import Supervisor


class Woken:
    """Notes what the handlers ask for."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def see(self, body: Any) -> None:
        self.calls.append(("see", body))

    def see_policy(self, body: Any) -> None:
        self.calls.append(("see_policy", body))

    def wake(self, *where: object) -> None:
        self.calls.append(("wake", *where))


def registered(woken: Woken) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    handlers.register(registry, cast("Supervisor", woken))
    return registry


def test_no_handler_is_of_a_kind_for_which_kopf_adds_a_finalizer() -> None:
    registry = registered(Woken())
    watching = registry._watching.get_all_handlers()
    assert {handler.fn.__name__ for handler in watching} == {"training_job", "guard_policy", "job", "run_request"}
    for kind in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(kind.get_all_handlers()) == []
    assert {str(handler.activity) for handler in registry._activities.get_all_handlers()} == {
        "authentication",
        "startup",
    }


async def test_kopf_posts_no_events_and_asks_for_no_rights_over_definitions() -> None:
    settings = kopf.OperatorSettings()
    registry = registered(Woken())
    for handler in registry._activities.get_all_handlers():
        if handler.fn.__name__ == "configure":
            await cast("Any", handler.fn)(settings=settings)
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True


async def test_an_event_is_only_a_hint_of_what_to_look_at() -> None:
    woken = Woken()
    handlers_of_events = registered(woken)._watching.get_all_handlers()
    functions = {handler.fn.__name__: cast("Any", handler.fn) for handler in handlers_of_events}
    body = {"metadata": {"name": "job"}}
    await functions["training_job"](body=body)
    policy = {"metadata": {"name": "guard", "namespace": "team"}}
    await functions["guard_policy"](body=policy, event={"type": "MODIFIED"})
    await functions["guard_policy"](body=policy, event={"type": "DELETED"})
    await functions["job"](namespace="team", labels={"trimtab.dev/job": "demo"})
    await functions["run_request"](namespace="team", spec={"job": "asked"})
    assert woken.calls == [
        ("see", body),
        ("see_policy", policy),
        ("wake", "team"),
        ("wake", "team", "demo"),
        ("wake", "team", "asked"),
    ]
