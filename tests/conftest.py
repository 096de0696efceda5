"""Fixtures that several rooms share."""

from object_store_fixture import object_store

__all__ = ["object_store"]
