"""Columns of a log -> metric names.

A column's metric is, in this order: what the user mapped to it, what the format or the common aliases say it is, or
its own name in lower case with everything but letters, digits and underscores as `_`. No two columns give one metric:
the second is left out, and said to be.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS, METRIC_NAME

from trimtab_policies.errors import InvalidMapping

MOST_COLUMNS = 10_000
LONGEST_COLUMN = 1000
STEP = "step"
STEP_COLUMNS = (
    "train_global_step",
    "trainer_global_step",
    "global_step",
    "step",
    "iteration",
    "iter",
    "training_step",
    "train_step",
    "num_updates",
    "update",
    "optimizer_step",
    "current_steps",
)
TIME_COLUMNS = frozenset({"time", "timestamp", "wall_time", "walltime", "datetime", "date"})
ALIASES: Mapping[str, str] = {
    "lm_loss": "loss",
    "train_loss": "loss",
    "training_loss": "loss",
    "loss_train": "loss",
    "trl": "loss",
    "ce_loss": "loss",
    "cross_entropy_loss": "loss",
    "loss_metrics_global_avg_loss": "loss",
    "loss_metrics_global_max_loss": "loss_max",
    "max_loss": "loss_max",
    "gradient_norm": "grad_norm",
    "gradnorm": "grad_norm",
    "gnorm": "grad_norm",
    "norm": "grad_norm",
    "total_grad_norm": "grad_norm",
    "grad_norm_total": "grad_norm",
    "learning_rate": "lr",
    "lm_learning_rate": "lr",
    "lossscale": "loss_scale",
    "grad_scale": "loss_scale",
    "number_of_nan_iterations": "nonfinite",
    "nan_iterations": "nonfinite",
    "number_of_skipped_iterations": "skipped_update",
    "skipped_iterations": "skipped_update",
    "tok_s": "tokens_per_second",
    "tok_sec": "tokens_per_second",
    "tokens_sec": "tokens_per_second",
    "tokens_s": "tokens_per_second",
    "tps": "tokens_per_second",
    "tokens_per_sec": "tokens_per_second",
    "throughput_tps": "tokens_per_second",
    "step_time": "step_seconds",
    "seconds_per_step": "step_seconds",
    "validation_loss": "val_loss",
    "valid_loss": "val_loss",
    "tel": "val_loss",
    "zloss": "z_loss",
}
_KNOWN = frozenset((*KNOWN_SCALARS, *KNOWN_VECTORS))
_PREFIXES = ("train_", "training_", "trainer_", "optim_", "optimizer_")
_FOREIGN = re.compile(r"[^a-z0-9_]+")


def same_name(name: str) -> str | None:
    """What the format says of a column: its name without decoration; None for a column that is no metric."""
    return name


def plain_name(column: str) -> str:
    """The column in lower case, other characters as single underscores; may be empty or begin with a digit."""
    return _FOREIGN.sub("_", column.strip().lower()).strip("_")


def metric_name(column: str, aliases: Mapping[str, str]) -> str | None:
    """The metric a column is when nobody mapped it; None when no name can be made of it."""
    plain = plain_name(column)
    for name in (plain, *(plain.removeprefix(prefix) for prefix in _PREFIXES if plain.startswith(prefix))):
        found = aliases.get(name) or ALIASES.get(name)
        if found:
            return found
        if name in _KNOWN:
            return name
    if plain[:1].isdigit():
        plain = f"metric_{plain}"
    return plain if METRIC_NAME.fullmatch(plain) else None


def check_mapping(mapping: Mapping[str, str]) -> None:
    """Raise InvalidMapping naming every target that is no metric name, and every source used twice."""
    problems = [
        f"{target!r} is no metric name: it must match {METRIC_NAME.pattern}"
        for target in mapping
        if not METRIC_NAME.fullmatch(target)
    ]
    sources = list(mapping.values())
    problems += [f"{source!r} is mapped twice" for source in dict.fromkeys(sources) if sources.count(source) > 1]
    if problems:
        raise InvalidMapping("; ".join(problems))


class Names:
    """The columns of one log and their metrics, found as they appear.

    `columns` is what was decided: column -> metric, None where a column is left out. `time_columns` may tell the time.
    """

    def __init__(
        self,
        mapping: Mapping[str, str],
        aliases: Mapping[str, str],
        undecorated: Callable[[str], str | None] = same_name,
    ) -> None:
        check_mapping(mapping)
        self.columns: dict[str, str | None] = {}
        self.step_column: str | None = None
        self.time_columns: set[str] = set()
        self._mapped = {source: target for target, source in mapping.items()}
        self._wanted = dict(mapping)
        self._aliases = aliases
        self._undecorated = undecorated
        self._owner: dict[str, str] = {}

    def unknown_sources(self) -> tuple[str, ...]:
        """Sources of the mapping that no column has had."""
        found = set(self._owner.values()) | {self.step_column}
        return tuple(sorted(set(self._mapped) - {self._source(column) for column in found if column is not None}))

    def learn(self, columns: list[str]) -> list[str]:
        """Decide on new columns; returns a sentence for each that has to be left out.

        Columns that bear a metric's own name come before those that an alias gives it.
        """
        problems: list[str] = []
        for column in sorted(columns, key=self._rank):
            problem = self._decide(column)
            if problem:
                problems.append(problem)
        return problems

    def choose_step(self, columns: Iterable[str]) -> None:
        """Settle on the column that counts steps, if one of a row's can be it: the mapped one, else a usual name."""
        ranked = [(rank, column) for column in columns if (rank := self._step_rank(column)) is not None]
        if ranked:
            self.step_column = min(ranked)[1]
            self.columns[self.step_column] = None

    def _decide(self, column: str) -> str | None:
        self.columns[column] = None
        short = self._undecorated(column)
        mapped = self._mapped.get(self._source(column))
        if mapped is None and plain_name(short or column) in TIME_COLUMNS:
            self.time_columns.add(column)
        if short is None and mapped is None:
            return None
        metric = mapped or metric_name(short or column, self._aliases)
        if metric is None:
            return f"column {column[:80]!r} is left out: no metric name can be made of it; give it one with --map"
        if mapped is None and (metric in self._wanted or metric == STEP):
            return None  # The user chose another column for this metric, or another one counts the steps.
        if metric in self._owner and short is not None:
            own = plain_name(short)
            metric = own if own not in self._owner and METRIC_NAME.fullmatch(own) else metric
        if metric in self._owner:
            return (
                f"column {column[:80]!r} is left out: {metric} is read from {self._owner[metric][:80]!r} already; "
                f"choose one with --map '{metric}=COLUMN'"
            )
        self._owner[metric] = column
        self.columns[column] = metric
        return None

    def _rank(self, column: str) -> tuple[bool, bool]:
        """Mapped columns first, then those that are called what their metric is."""
        short = self._undecorated(column) or column
        return self._source(column) not in self._mapped, metric_name(short, self._aliases) != short

    def _step_rank(self, column: str) -> int | None:
        if STEP in self._wanted:
            return 0 if self._mapped.get(self._source(column)) == STEP else None
        plain = plain_name(self._undecorated(column) or column)
        return STEP_COLUMNS.index(plain) if plain in STEP_COLUMNS else None

    def _source(self, column: str) -> str:
        """The name under which the user may have mapped the column: as it stands, or undecorated."""
        if column in self._mapped:
            return column
        return self._undecorated(column) or column
