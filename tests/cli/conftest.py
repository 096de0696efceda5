"""Fixtures of the command line's tests."""

from control_plane_fixture import control_plane

__all__ = ["control_plane"]
