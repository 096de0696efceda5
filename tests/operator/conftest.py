"""Fixtures of the operator's tests."""

from control_plane_fixture import control_plane

__all__ = ["control_plane"]
