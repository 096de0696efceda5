"""Fixtures of the command line's tests."""

from control_plane_fixture import control_plane
from job_laboratory import crds, laboratory

__all__ = ["control_plane", "crds", "laboratory"]
