"""What the page shows, as frozen values without any markup. Text in them is as it was found: the page escapes it."""

from dataclasses import dataclass

from trimtab_policies.backtest.curves import Curve


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the facts table."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a step; `kind` is `fired`, `held`, `target`, `passed` or `request`."""

    step: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Shade:
    """Steps (inclusive) of a kind, `flagged` or `skipped`, with what they are in words."""

    first: int
    last: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One attempt's values of a metric, on the surviving history or abandoned."""

    attempt: int
    surviving: bool
    curve: Curve


@dataclass(frozen=True, slots=True)
class Chart:
    """A metric over steps, `judged` where its lines carry the rule's baselines and thresholds; `summary` in words."""

    title: str
    summary: str
    lines: tuple[Line, ...]
    judged: bool = False


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A grid of values: rows from the top, columns from the left. None where nothing is known, NaN where not finite.

    `marked` are the (row, column) of cells to point at; `columns` and `rows` name the axes with their ends.
    """

    title: str
    summary: str
    rows: tuple[str, str, str]
    columns: tuple[str, str, str]
    values: tuple[tuple[float | None, ...], ...]
    low: float
    high: float
    marked: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """An attempt on the time line: its steps in range, of which those after `survives_to` were abandoned."""

    attempt: int
    first: int
    last: int
    survives_to: int | None


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint, how its state came about as (time, state, why), and what each plan thought of it."""

    step: int
    attempt: int
    state: str
    surviving: bool
    chosen: bool
    history: tuple[tuple[str, str, str], ...]
    thoughts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; nothing is shown of one without rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the page with a title: facts and tables; `failed` where what it tells came to nothing."""

    title: str
    facts: tuple[Fact, ...]
    tables: tuple[Table, ...] = ()
    failed: bool = False


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A phase of the incident: when it began, after how many seconds, and how many it took.

    One that is not over (`ended`) took so long up to the newest record.
    """

    phase: str
    time: str
    after: float
    took: float
    ended: bool


@dataclass(frozen=True, slots=True)
class ProbeView:
    """Losses measured forward-only: (window, loss or None, kind), kinds `control`, `flagged`, `bad`, `healthy`."""

    title: str
    summary: str
    losses: tuple[tuple[int, float | None, str], ...]
    mean: float | None
    threshold: float | None
    skip: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TrailLine:
    """One journal record in words. `since` is its distance to the firing, `counts` False for a replaced operator's."""

    seq: int
    time: str
    since: str
    action: str
    says: str
    ours: bool
    counts: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """What verifying the trail found; `end`, `signature`, `versions` and `snapshots` are sentences."""

    verified: bool
    records: int
    head_seq: int
    head_hash: str
    intact_until: int
    end: str
    signature: str
    versions: str
    snapshots: str
    ignored: tuple[int, ...]
    fetched: int
    unchecked: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole page. `first` and `last` are the steps drawn; `notes` say what could not be shown, and why."""

    run: str
    incident: str
    headline: str
    outcome: str
    notes: tuple[str, ...]
    facts: tuple[Fact, ...]
    story: tuple[str, ...]
    phases: tuple[PhaseView, ...]
    people: Block
    first: int
    last: int
    marks: tuple[Mark, ...]
    shades: tuple[Shade, ...]
    charts: tuple[Chart, ...]
    not_drawn: tuple[str, ...]
    heat_maps: tuple[HeatMap, ...]
    lanes: tuple[Lane, ...]
    checkpoints: tuple[CheckpointView, ...]
    other_checkpoints: int
    diagnoses: tuple[Block, ...]
    plans: tuple[Block, ...]
    probes: tuple[ProbeView, ...]
    probation: Block
    trail: tuple[TrailLine, ...]
    proof: Proof
