"""The report as one file that needs nothing else: no script, no network, no fonts. Pure."""

from trimtab_cli.report import sections
from trimtab_cli.report.markup import text
from trimtab_cli.report.style import STYLE
from trimtab_cli.report.views import Report

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(report: Report) -> str:
    """The whole page; the same report gives the same bytes."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>Incident {text(report.incident)}</title><style>{STYLE}</style></head><body>",
        sections.alarm(report.proof),
        sections.head(report),
        "<main>",
        sections.summary(report),
        sections.story(report),
        sections.phases(report),
        sections.people(report),
        sections.drawings(report),
        sections.heat(report),
        sections.diagnosis(report),
        sections.plans(report),
        sections.checkpoints(report),
        sections.trail(report),
        sections.proof(report),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)
