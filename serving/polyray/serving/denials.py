"""Why the gateway refuses, once for all who say it: HAProxy in JSON, the responder to `ray://`, the docs.

A reason is a stable word; programs may match it. Statuses: 401 where another credential would help, 403
where none would, 404 for what is not there (or is another tenant's, which must look the same).
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Denial:
    status: int
    message: str
    hint: str

    def body(self, code: str) -> str:
        """Return the JSON that a caller gets."""
        return json.dumps({"code": code, "message": self.message, "hint": self.hint})


_LOGIN = "run 'polyray login', then: eval $(polyray env)"

DENIALS: dict[str, Denial] = {
    "no_credential": Denial(401, "no token was sent", _LOGIN),
    "malformed": Denial(401, "this is not a token", _LOGIN),
    "bad_alg": Denial(401, "the token is not signed in a way that is accepted here", _LOGIN),
    "unknown_kid": Denial(401, "the token is signed with a key that is not known here", _LOGIN),
    "bad_signature": Denial(401, "the signature of the token does not hold", _LOGIN),
    "bad_issuer": Denial(401, "this is not a platform token", _LOGIN),
    "bad_audience": Denial(401, "the token is for another audience", _LOGIN),
    "bad_claims": Denial(401, "a claim of the token is missing or wrong", _LOGIN),
    "token_expired": Denial(401, "the token has expired", _LOGIN),
    "token_not_yet_valid": Denial(401, "the token is not valid yet; a clock may be wrong", _LOGIN),
    "token_revoked": Denial(401, "the session of this token was ended", _LOGIN),
    "unknown_api_key": Denial(401, "this API key is not known", "make one with 'polyray key create'"),
    "api_key_expired": Denial(401, "this API key has expired", "make one with 'polyray key create'"),
    "api_key_not_here": Denial(401, "an API key opens /serve/<service>/ only", _LOGIN),
    "tenant_suspended": Denial(403, "the tenant is suspended", "ask the operator"),
    "no_tenant": Denial(403, "a token of an operator reaches no cluster", "log in as a member of one"),
    "role_forbids": Denial(403, "the role viewer may look, not run or change anything", "ask an admin of the tenant"),
    "blocked_endpoint": Denial(403, "this endpoint is not open through the gateway", "use the platform's own login"),
    "no_session": Denial(404, "there is no session to reach", "run 'polyray env' to start one"),
    "no_such_cluster": Denial(404, "there is no such cluster, or it does not serve this", "run 'polyray env' again"),
    "no_such_service": Denial(404, "there is no such service", "see 'polyray service ls'"),
}

#: Of HAProxy itself, by status.
ERRORS: dict[int, tuple[str, Denial]] = {
    400: ("bad_request", Denial(400, "the request is ambiguous or malformed", "send one Host and one Authorization")),
    408: ("request_timeout", Denial(408, "the request was not received in time", "send it again")),
    500: ("gateway_error", Denial(500, "the gateway failed", "tell the operator")),
    502: ("bad_gateway", Denial(502, "the cluster gave no valid answer", "see the logs of its workload")),
    503: ("cluster_unreachable", Denial(503, "the cluster does not answer now", "try again; see 'polyray ps'")),
    504: ("cluster_timeout", Denial(504, "the cluster did not answer in time", "see the logs of its workload")),
}

RATE_LIMITED = Denial(429, "too many requests of this tenant", "wait a second, then send fewer")


def sentence(code: str) -> str:
    """Return a refusal as one line for a person, such as a Ray client shows it."""
    denial = DENIALS.get(code)
    if denial is None:
        return "polyray gateway: denied"
    return f"polyray gateway: {code}: {denial.message}; {denial.hint}"
