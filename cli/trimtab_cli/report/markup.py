"""HTML from values: whatever came from a trainer, a policy or a person is escaped here, and nowhere else. Pure."""

from collections.abc import Iterable, Sequence
from html import escape

from trimtab_operator.story import printable

from trimtab_cli.report.views import Block, Fact, Table

_LONGEST = 2000


def text(content: object) -> str:
    """Text of anybody's made safe for an element or an attribute: no markup, no control characters, bounded."""
    return escape(printable(str(content), _LONGEST))


def paragraphs(lines: Iterable[str], kind: str = "") -> str:
    """Each line a paragraph."""
    attribute = f' class="{kind}"' if kind else ""
    return "".join(f"<p{attribute}>{text(line)}</p>" for line in lines)


def facts_list(facts: Sequence[Fact]) -> str:
    """Names and their values."""
    rows = "".join(f"<dt>{text(one.name)}</dt><dd>{text(one.value)}</dd>" for one in facts)
    return f"<dl>{rows}</dl>" if rows else ""


def table(content: Table) -> str:
    """Rows under headings, which a narrow page repeats before each value; nothing where there is no row."""
    if not content.rows:
        return ""
    title = f"<h4>{text(content.title)}</h4>" if content.title else ""
    head = "".join(f"<th>{text(column)}</th>" for column in content.columns)
    rows = "".join(_table_row(content.columns, row) for row in content.rows)
    return f'{title}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _table_row(columns: Sequence[str], row: Sequence[str]) -> str:
    cells = ""
    for column, value in zip(columns, row, strict=True):
        name = f' data-name="{text(column)}"' if column else ' class="name"'
        cells += f"<td{name}>{text(value)}</td>"
    return f"<tr>{cells}</tr>"


def block(content: Block, level: int = 3) -> str:
    """A titled part: its facts and its tables; nothing where there are neither."""
    inner = facts_list(content.facts) + "".join(map(table, content.tables))
    failed = ' class="bad"' if content.failed else ""
    return f"<h{level}{failed}>{text(content.title)}</h{level}>{inner}" if inner else ""


def section(title: str, *parts: str, kind: str = "") -> str:
    """A headed section; nothing when it would be empty."""
    content = "\n".join(part for part in parts if part)
    attribute = f' class="{kind}"' if kind else ""
    return f"<section{attribute}><h2>{text(title)}</h2>\n{content}</section>" if content else ""


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """What the drawn lines and points are: (class of the sample, words)."""
    rows = "".join(f'<li><i class="key {kind}"></i>{text(said)}</li>' for kind, said in entries)
    return f'<ul class="legend">{rows}</ul>' if rows else ""
