"""Thresholds proposed from the logs of healthy runs, with the evidence for each."""

from trimtab_policies.calibration.manifest import manifest
from trimtab_policies.calibration.proposal import NothingToPropose, Proposal, propose
from trimtab_policies.calibration.survey import LogEvidence, LogSurvey

__all__ = ["LogEvidence", "LogSurvey", "NothingToPropose", "Proposal", "manifest", "propose"]
