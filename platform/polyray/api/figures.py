"""Figures for Prometheus: requests as they come, the queue and the fleet as they are when asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from polyray.core.errors import Unavailable
from polyray.core.lifecycle import LeaseState, NodeState, WorkloadState
from polyray.store.engine import Store
from polyray.store.tables import Lease, Node, Workload


class Figures:
    def __init__(self, store: Store) -> None:
        self._registry = CollectorRegistry()
        labels = ["method", "route"]
        self._requests = Counter(
            "polyray_http_requests", "Requests by route and status", [*labels, "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "polyray_http_request_seconds", "Time to answer, streams whole", labels, registry=self._registry
        )
        self._registry.register(_Stored(store))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; `route` is a template, so that ids make no label."""
        known = method if method in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def render(self) -> tuple[bytes, str]:
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Stored(Collector):
    """Counts rows at each scrape; states without any are 0, so that a graph has no holes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("polyray_store_up", "Whether the store answers")
        try:
            with self._store.read() as session:
                counted = [
                    (
                        name,
                        states,
                        dict(session.execute(select(column, func.count()).group_by(column)).all()),
                    )
                    for name, column, states in (
                        ("workloads", Workload.state, WorkloadState),
                        ("nodes", Node.state, NodeState),
                        ("leases", Lease.state, LeaseState),
                    )
                ]
        except Unavailable:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        for name, states, found in counted:
            gauge = GaugeMetricFamily(f"polyray_{name}", f"How many {name} there are by state", labels=["state"])
            for state in states:
                gauge.add_metric([state.value], found.get(state.value, 0))
            yield gauge
            if name == "workloads":
                queue = GaugeMetricFamily("polyray_queue_length", "Workloads that wait")
                queue.add_metric([], found.get(WorkloadState.QUEUED.value, 0))
                yield queue

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from ()
