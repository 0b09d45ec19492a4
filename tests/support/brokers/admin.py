"""The client of Pulsar's REST API that tests use; the product's own is what some of them test."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPMethod, HTTPStatus
from typing import Any

import attrs


class _ToTheOwner(urllib.request.HTTPRedirectHandler):
    """Repeats a request, whatever it does, at the broker that owns the topic."""

    def redirect_request(self, req: Any, *_answer: Any) -> urllib.request.Request:
        return urllib.request.Request(_answer[-1], req.data, req.headers, method=req.get_method())


@attrs.frozen
class Admin:
    """Pulsar's REST API, as far as tests use it. Topics are full names, `persistent://…`.

    Attributes:
        url: The address, without a path.
        token: What to log in with; None: nothing.
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)

    def call(self, method: HTTPMethod, path: str, body: object = None) -> Any:
        """Send *body* as JSON to /admin/v2/*path* and return the JSON answer, or None."""
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(
            f"{self.url}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        # No proxy that the environment names leads to loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _ToTheOwner)
        try:
            with opener.open(request, timeout=90) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                error.add_note(f"{method} {path}: {error.read().decode(errors='replace')}")
                raise
        return json.loads(content) if content else None

    def get(self, path: str) -> Any:
        """GET /admin/v2/*path*."""
        return self.call(HTTPMethod.GET, path)

    def create_namespace(self, name: str) -> None:
        """Create the namespace *name*, `tenant/namespace`."""
        self.call(HTTPMethod.PUT, f"namespaces/{name}")

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace with all that is in it."""
        self.call(HTTPMethod.DELETE, f"namespaces/{name}?force=true")

    def set_namespace_policy(self, namespace: str, policy: str, value: object) -> None:
        """Set a policy by its path, such as `retention` or `backlogQuota`."""
        self.call(HTTPMethod.POST, f"namespaces/{namespace}/{policy}", value)

    def topics(self, namespace: str) -> list[str]:
        """Return the full names of the namespace's topics, with partitions one by one."""
        names: list[str] = self.get(f"persistent/{namespace}")
        return sorted(each for each in names if not each.endswith("/__change_events"))  # until 2.9

    def create_topic(self, topic: str) -> None:
        """Create a topic that is not partitioned, and has no subscription."""
        self.call(HTTPMethod.PUT, _path(topic))

    def delete_unused(self, namespace: str, after: int) -> None:
        """Have the broker delete unused topics without a subscription after so many seconds."""
        policies = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": after,
            "deleteWhileInactive": True,
        }
        self.set_namespace_policy(namespace, "inactiveTopicPolicies", policies)

    def published(self, topic: str) -> int:
        """Return how many messages a topic has got since it was made; 0 if it is not there."""
        try:
            count: int = self.stats(topic)["msgInCounter"]
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return 0
        return count

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic of *partitions* partitions."""
        self.call(HTTPMethod.PUT, f"{_path(topic)}/partitions", partitions)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0: not partitioned."""
        count: int = self.get(f"{_path(topic)}/partitions")["partitions"]
        return count

    def stats(self, topic: str) -> dict[str, Any]:
        """Return the statistics of a topic or of one partition."""
        stats: dict[str, Any] = self.get(f"{_path(topic)}/stats?getPreciseBacklog=true")
        return stats

    def backlog(self, topic: str, subscription: str) -> int:
        """Return how many messages the subscription has not acknowledged."""
        backlog: int = self.stats(topic)["subscriptions"][subscription]["msgBacklog"]
        return backlog

    def has_stored_acks(self, topic: str, subscription: str) -> bool:
        """Tell whether acknowledgements outlive an unload of *topic*.

        The first one is counted in memory at once, and written when the cursor has a ledger.
        """
        cursors = self.get(f"{_path(topic)}/internalStats")["cursors"]
        return bool(cursors[subscription]["state"] == "Open")

    def set_topic_policy(self, topic: str, policy: str, value: object) -> None:
        """Set a policy by its path, such as `maxProducers` or `maxMessageSize`."""
        self.call(HTTPMethod.POST, f"{_path(topic)}/{policy}", value)

    def unload(self, topic: str) -> None:
        """Unload a topic: its clients are disconnected, and the next use loads it again."""
        self.call(HTTPMethod.PUT, f"{_path(topic)}/unload")

    def terminate(self, topic: str) -> None:
        """End a topic: what is in it can be read, nothing more can be published."""
        self.call(HTTPMethod.POST, f"{_path(topic)}/terminate")

    def grant(self, topic: str, role: str, *actions: str) -> None:
        """Let *role* do *actions*, such as `produce`, on *topic*; it may nothing else there."""
        self.call(HTTPMethod.POST, f"{_path(topic)}/permissions/{role}", actions)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and disconnect its clients."""
        self.call(HTTPMethod.DELETE, f"{_path(topic)}?force=true")


#: The REST APIs of the brokers that a test uses, by their service URLs.
ADMINS: dict[str, Admin] = {}


def _path(topic: str) -> str:
    domain, _, name = topic.partition("://")
    return f"{domain}/{name}"
