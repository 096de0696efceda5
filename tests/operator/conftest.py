"""Fixtures of the operator's tests."""

import pytest
from control_plane_fixture import ControlPlane, control_plane
from operator_ports import audit_bucket, ports
from trimtab_operator.resources import custom_resource_definitions

__all__ = ["audit_bucket", "control_plane", "ports"]


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with the product's custom resources."""
    definitions = custom_resource_definitions()
    control_plane.apply(*definitions)
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    return control_plane
