"""Who may do what: one table, deny by default.

A role sees only its own tenant; that a foreign id reads as an absent one is the API's doing. Operators
run the platform and act on no tenant's data: they hold no action that reads logs, records or artefacts.
"""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"
    OPERATOR = "operator"


class Action(StrEnum):
    WHOAMI = "whoami"
    READ_STATUS = "read_status"
    #: Jobs, sessions and services: lists, one, why, events.
    READ_WORKLOAD = "read_workload"
    READ_LOGS = "read_logs"
    READ_RECORDS = "read_records"
    SUBMIT_WORKLOAD = "submit_workload"
    STOP_WORKLOAD = "stop_workload"
    KILL_WORKER = "kill_worker"
    READ_BLOB = "read_blob"
    WRITE_BLOB = "write_blob"
    READ_DATASET = "read_dataset"
    PUBLISH_DATASET = "publish_dataset"
    READ_MODEL = "read_model"
    REGISTER_MODEL = "register_model"
    READ_KEYS = "read_keys"
    CREATE_KEY = "create_key"
    REVOKE_KEY = "revoke_key"
    READ_QUEUE = "read_queue"
    READ_NODES = "read_nodes"
    READ_COSTS = "read_costs"
    READ_TENANTS = "read_tenants"
    APPLY_PLATFORM = "apply_platform"
    READ_AUDIT = "read_audit"
    ACKNOWLEDGE_AUDIT = "acknowledge_audit"
    #: Through the gateway.
    USE_CLUSTER = "use_cluster"
    READ_DASHBOARD = "read_dashboard"
    CALL_SERVICE = "call_service"


_ALL = frozenset(Role)
_TENANT = frozenset({Role.VIEWER, Role.MEMBER, Role.ADMIN})
_WRITERS = frozenset({Role.MEMBER, Role.ADMIN})

#: The one table. An action that is not in it is nobody's.
ALLOWED: dict[Action, frozenset[Role]] = {
    Action.WHOAMI: _ALL,
    Action.READ_STATUS: _ALL,
    Action.READ_WORKLOAD: _ALL,
    Action.READ_LOGS: _TENANT,
    Action.READ_RECORDS: _TENANT,
    Action.SUBMIT_WORKLOAD: _WRITERS,
    Action.STOP_WORKLOAD: _WRITERS | {Role.OPERATOR},
    Action.KILL_WORKER: _WRITERS,
    Action.READ_BLOB: _WRITERS,
    Action.WRITE_BLOB: _WRITERS,
    Action.READ_DATASET: _TENANT,
    Action.PUBLISH_DATASET: _WRITERS,
    Action.READ_MODEL: _TENANT,
    Action.REGISTER_MODEL: _WRITERS,
    Action.READ_KEYS: _TENANT,
    Action.CREATE_KEY: _WRITERS,
    Action.REVOKE_KEY: _WRITERS,
    Action.READ_QUEUE: _ALL,
    Action.READ_NODES: _ALL,
    Action.READ_COSTS: _ALL,
    Action.READ_TENANTS: _ALL,
    Action.APPLY_PLATFORM: frozenset({Role.OPERATOR}),
    Action.READ_AUDIT: frozenset({Role.OPERATOR}),
    Action.ACKNOWLEDGE_AUDIT: frozenset({Role.OPERATOR}),
    Action.USE_CLUSTER: _WRITERS,
    Action.READ_DASHBOARD: _TENANT,
    Action.CALL_SERVICE: _TENANT,
}


def allowed(role: str, action: Action | str) -> bool:
    """Say whether a role may do an action; what the table does not know is refused."""
    return any(role == holder and action == known for known, holders in ALLOWED.items() for holder in holders)
