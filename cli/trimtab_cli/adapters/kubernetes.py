"""Plain JSON requests to the Kubernetes API server, with translated errors."""

import base64
import json
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException, OpenApiException
from kubernetes.config.config_exception import ConfigException
from trimtab_operator.resources import API_VERSION
from urllib3.exceptions import HTTPError

from trimtab_cli.cluster_choice import ClusterChoice, KubernetesObject
from trimtab_cli.errors import CliError, NotAllowed, NotFound, Unreachable, UsageError
from trimtab_cli.job_view import event_order

TIMEOUT_SECONDS = (3.0, 10.0)
"""To connect, and to wait for an answer."""

_ITEM = re.compile(r"/namespaces/(?P<namespace>[^/]+)/(?P<kind>[^/]+)s/(?P<name>[^/]+)$")


class Kubernetes:
    """One API server."""

    def __init__(self, choice: ClusterChoice) -> None:
        """Read the kubeconfig and send nothing; raises NotFound when there is none or it lacks the context."""
        configuration = client.Configuration()
        # The library looks for the variable once, when it is imported.
        file = str(choice.kubeconfig) if choice.kubeconfig else os.environ.get("KUBECONFIG")
        try:
            contexts, active = cast("Any", config).list_kube_config_contexts(config_file=file)
            cast("Any", config).load_kube_config(
                config_file=file, context=choice.context, client_configuration=configuration, persist_config=False
            )
        except (ConfigException, OSError) as error:
            wanted = choice.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
            text = " ".join(str(error).split()) or "it cannot be read"
            raise NotFound(f"The kubeconfig {wanted} does not lead to a cluster: {text}") from error
        chosen = next((one for one in contexts if one["name"] == choice.context), active)
        self.namespace: str = choice.namespace or chosen["context"].get("namespace") or "default"
        self.server = str(cast("Any", configuration).host)
        configuration.retries = cast("Any", False)
        self._client = client.ApiClient(configuration)

    def resource(self, plural: str, name: str, namespace: str = "") -> KubernetesObject:
        """One custom resource of a namespace, else of the chosen one; raises NotFound."""
        return self.get(f"/apis/{API_VERSION}/namespaces/{namespace or self.namespace}/{plural}/{name}")

    def resources(self, plural: str, *, everywhere: bool = False) -> list[KubernetesObject]:
        """All custom resources of a kind, of the chosen namespace or of all."""
        scope = "" if everywhere else f"/namespaces/{self.namespace}"
        return self.get(f"/apis/{API_VERSION}{scope}/{plural}")["items"]

    def events(self, involved_name: str, involved_uid: str) -> list[KubernetesObject]:
        """The Events about one object, oldest first."""
        selector = f"involvedObject.name={involved_name},involvedObject.uid={involved_uid}"
        found = self.get(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=selector)["items"]
        return sorted(found, key=event_order)

    def secret(self, namespace: str, name: str) -> dict[str, str]:
        """The decoded data of a Secret; raises NotFound, NotAllowed."""
        body = self.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        data: Mapping[str, str] = body.get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def get(self, path: str, **query: str) -> KubernetesObject:
        """GET a path of the API server."""
        return self._request("GET", path, query)

    def user(self) -> str:
        """The user that the API server takes us for."""
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        review = self._request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, kind)
        return str(review["status"]["userInfo"]["username"])

    def create_resource(self, plural: str, body: KubernetesObject) -> KubernetesObject:
        """Create a custom resource in the chosen namespace; raises NotAllowed, and UsageError for a bad field."""
        path = f"/apis/{API_VERSION}/namespaces/{self.namespace}/{plural}"
        return self._request("POST", path, {"fieldValidation": "Strict"}, body)

    def delete(self, path: str) -> KubernetesObject:
        """DELETE an object, its dependents in the background."""
        return self._request("DELETE", path, {"propagationPolicy": "Background"})

    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: KubernetesObject | None = None
    ) -> KubernetesObject:
        try:
            response = cast("Any", self._client).call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=TIMEOUT_SECONDS,
            )
            return json.loads(response.data)
        except ApiException as error:
            raise self._translated(error, path) from error
        except (HTTPError, OpenApiException, OSError, ValueError) as error:
            raise Unreachable(
                f"The API server {self.server} does not answer ({type(error).__name__}): "
                "is the cluster up, and is this the right context?"
            ) from error

    def _translated(self, error: ApiException, path: str) -> CliError:
        status = cast("Any", error).status
        said = _message_of(cast("Any", error).body) or str(cast("Any", error).reason)
        if status == 404 and said.startswith(("404 page", "the server could not find")):
            return NotFound("The cluster does not know Trimtab's resources: install the chart first.")
        if status == 404:
            item = _ITEM.search(path)
            what = f"{item['kind']} {item['name']} in namespace {item['namespace']}" if item else path
            return NotFound(f"There is no {what}.")
        if status in {400, 422}:
            return UsageError(f"The API server refuses: {said}")
        if status in {401, 403}:
            return NotAllowed(f"The API server refuses: {said}")
        return Unreachable(f"The API server {self.server} answered {status} to {path}: {said}")


def _message_of(body: object) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        return str(json.loads(text).get("message", ""))
    except (ValueError, AttributeError):
        return text.strip()
