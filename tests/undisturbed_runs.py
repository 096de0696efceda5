"""The runs that fault tests compare with: the same jobs, to which nothing happens."""

from typing import Any

from training_jobs import Json, Namespace, Trail, prepare_data, training_job

HEALTHY_STEPS = 150
FIRST_DAMAGE, DAMAGE_EVERY, DAMAGE_WINDOWS, INCIDENTS = 160, 50, 5, 8
DAMAGED_STEPS = FIRST_DAMAGE + DAMAGE_EVERY * INCIDENTS
BUDGET = {"maxRollbacks": INCIDENTS, "maxRestarts": 10, "window": "1h"}


def healthy_job(name: str, **changes: Any) -> Json:
    """A tiny job on data without damage."""
    return training_job(name, prepare_data(), steps=HEALTHY_STEPS, budget=BUDGET, **changes)


def damaged_job(name: str, incidents: int = INCIDENTS, **changes: Any) -> Json:
    """A tiny job whose data has `incidents` damaged stretches, far enough apart for a probation to pass between."""
    starts = [FIRST_DAMAGE + DAMAGE_EVERY * number for number in range(incidents)]
    data = prepare_data(damage=[(start, start + DAMAGE_WINDOWS - 1) for start in starts])
    steps = FIRST_DAMAGE + DAMAGE_EVERY * incidents
    return training_job(name, data, steps=steps, budget=BUDGET, **changes)


def decisions(trail: Trail) -> list[Json]:
    """What was decided about each incident: rule, first bad step, checkpoints restored and windows skipped."""
    found: dict[str, Json] = {}
    for record in trail.of("IncidentOpened", "TargetSelected", "ExtentFound", "IncidentClosed"):
        after = record.after or {}
        about = found.setdefault(record.incident or "", {"targets": []})
        if record.action == "IncidentOpened":
            about |= {name: after["latch"][name] for name in ("rule", "first_bad_step", "flagged")}
        elif record.action == "TargetSelected":
            about["targets"].append(after["plan"]["target"]["step"])
        elif record.action == "ExtentFound":
            about["skip"] = after["skip"]
        else:
            about["outcome"] = record.outcome
    return list(found.values())


def commands(trail: Trail) -> list[tuple[str, str | None, str]]:
    """(action, phase, command index) of every incident's records; the job's name is left out."""
    return [
        (action, phase, identity.rpartition("#")[2] if "#" in identity else "")
        for action, phase, identity in trail.story
    ]


def numbers(namespace: Namespace, job: str) -> dict[int, tuple[float, float]]:
    """Loss and gradient norm of every step of the surviving history, to be compared bit for bit."""
    return {
        step: (record.scalars["loss"], record.scalars["grad_norm"]) for step, record in namespace.surviving(job).items()
    }
