"""What a benchmark measured: named samples with their spread, kept as JSON so that a run may be continued."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "benchmarks"


def machine() -> str:
    """This machine in words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    busy, _, _ = os.getloadavg()
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB of memory, {platform.system()}, "
        f"Python {platform.python_version()}, PyTorch {version('torch').split('+')[0]}; "
        f"load average {busy:.1f} when the measuring ended"
    )


def _processor() -> str:
    """Its name, and whether it multiplies bfloat16 itself: ratios of bfloat16 to float32 depend on it."""
    lines = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    fields = {name.strip(): value.split() for name, value in lines.items()}
    able = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in fields.get("flags", [])]
    return ", ".join([" ".join(fields.get("model name", [platform.machine()])), *able])


@dataclass(frozen=True)
class Figure:
    """One measured quantity. A ratio has no unit; `goal` is the largest median that is good enough."""

    name: str
    samples: tuple[float, ...]
    unit: str = ""
    goal: float | None = None

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.samples)

    def quantile(self, fraction: float) -> float:
        """The sample below which `fraction` of all lie (nearest rank)."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


@dataclass(frozen=True)
class Measurement:
    """The figures of one benchmark, what they mean, and the machine they were taken on."""

    title: str
    about: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    machine: str = field(default_factory=machine)


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, ...]:
    """The quotients of samples that were taken side by side."""
    return tuple(above / below for above, below in zip(numerators, denominators, strict=True))


def read(path: Path) -> Measurement:
    """A measurement as `write` left it."""
    return msgspec.json.decode(path.read_bytes(), type=Measurement)


def write(name: str, measurement: Measurement, *, add: bool = False) -> Path:
    """Keep a measurement; with `add` its samples join those of the same figures that are kept already."""
    path = FOLDER / f"{name}.json"
    if add and path.exists():
        measurement = _joined(read(path), measurement)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(measurement), indent=1) + b"\n")
    return path


def repeat(times: int, act: Callable[[], None]) -> None:
    """Do something several times: the rounds that warm caches up before measuring."""
    for _ in range(times):
        act()


def _joined(earlier: Measurement, later: Measurement) -> Measurement:
    known = {figure.name: figure.samples for figure in earlier.figures}
    figures = tuple(
        Figure(figure.name, known.get(figure.name, ()) + figure.samples, figure.unit, figure.goal)
        for figure in later.figures
    )
    return Measurement(later.title, later.about, figures, later.notes, later.machine)
