"""T04, T08, T09: headers and paths that try to be read in two ways, and credentials in the wrong place."""

from __future__ import annotations

import pytest

from support.front import A, B, Front
from support.raw_http import exchange, status_of
from support.tokens import sign


def _headers(seen: dict[str, object]) -> list[list[str]]:
    headers = seen["headers"]
    assert isinstance(headers, list)
    return headers


def _raw(front: Front, request: str) -> bytes:
    return exchange(front.running.port, request.replace("\n", "\r\n").encode())


@pytest.mark.parametrize(
    "header",
    [
        "X-Ray-Authorization",
        "x_ray_authorization",
        "Cookie",
        "X-Tenant",
        "X_Tenant",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Prefix",
        "X_Forwarded_For",
        "Forwarded",
        "X-Real-Ip",
        "X-User",
        "X-Api-Key",
        "X-Polyray-Deny",
        "Proxy-Authorization",
    ],
)
def test_a_header_that_could_speak_for_the_gateway_does_not_reach_the_cluster(front: Front, header: str) -> None:
    answer = front.get("/api/version", sign(front.keys, front.claims()), **{header: "smuggled"})
    assert answer.status_code == 200
    assert "smuggled" not in answer.text


def test_the_cluster_sees_its_own_secret_and_never_the_callers_token(front: Front) -> None:
    token = sign(front.keys, front.claims())
    answer = front.get("/api/version", token, Cookie=f"ray-authentication-token={token}", Connection="authorization")
    authorizations = [value for name, value in _headers(answer.json()) if name == "authorization"]
    assert authorizations == [f"Bearer secret-of-{A}"]
    assert token not in answer.text
    assert "set-cookie" not in answer.headers


def test_the_tenant_is_the_tokens_own_whatever_the_request_says(front: Front) -> None:
    token = sign(front.keys, front.claims(tenant="speech", sub="bob"))
    answer = front.get(f"/api/version?cluster={A}&tenant=vision", token, X_Tenant="vision", X_Polyray_Cluster=A)
    assert answer.json()["server"] == "speech"


@pytest.mark.parametrize("path", ["/", "/api/version", "/serve/digits/predict"])
def test_no_credential_is_refused_with_the_way_out(front: Front, path: str) -> None:
    answer = front.get(path)
    assert answer.status_code == 401
    assert answer.json()["code"] == "no_credential"
    assert "polyray" in answer.json()["hint"]
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "headers",
    [
        {"Cookie": "ray-authentication-token={token}"},
        {"Cookie": "gw_jwt={token}"},
        {"X-Ray-Authorization": "Bearer {token}"},
        {"X-Api-Key": "{token}"},
        {"Proxy-Authorization": "Bearer {token}"},
        {"Authorization": "Basic {token}"},
        {"Authorization": "{token}"},
    ],
)
def test_a_good_token_in_the_wrong_place_is_no_credential(front: Front, headers: dict[str, str]) -> None:
    token = sign(front.keys, front.claims())
    answer = front.get("/api/version", **{name: value.format(token=token) for name, value in headers.items()})
    assert answer.status_code == 401


def test_a_token_in_the_query_is_no_credential_and_is_not_logged(front: Front) -> None:
    token = sign(front.keys, front.claims())
    assert front.get(f"/api/version?token={token}&access_token={token}").status_code == 401
    assert front.get(f"/api/version?x={token}", token).status_code == 200
    log = front.running.log.read_text()
    assert token not in log
    assert token.split(".")[2][:20] not in log


def test_two_authorization_headers_are_refused(front: Front) -> None:
    good, bad = sign(front.keys, front.claims()), "x.y.z"
    for first, second in ((good, bad), (bad, good), (good, good)):
        answer = _raw(
            front,
            f"GET /api/version HTTP/1.1\nHost: a\nAuthorization: Bearer {first}\nAuthorization: Bearer {second}\n\n",
        )
        assert status_of(answer) == 400


def test_a_wrong_bearer_is_not_rescued_by_a_right_key_in_a_lower_header(front: Front) -> None:
    answer = front.get("/serve/digits/", "x.y.z", X_Api_Key=front.api_keys["digits"])
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\nHost: a\nHost: b\n",
        "POST / HTTP/1.1\nHost: a\nContent-Length: 5\nTransfer-Encoding: chunked\n",
        "POST / HTTP/1.1\nHost: a\nContent-Length: 5\nContent-Length: 6\n",
        "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked, identity\n",
        "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: xchunked\n",
        "GET / HTTP/1.1\nHost : a\n",
        "GET / HTTP/1.1\nHost: a\nX Y: z\n",
        "GET  / HTTP/1.1\nHost: a\n",
        "GET /\x00 HTTP/1.1\nHost: a\n",
    ],
)
def test_ambiguous_framing_never_reaches_a_cluster_as_two_requests(front: Front, head: str) -> None:
    token = sign(front.keys, front.claims())
    seen = len(front.vision.requests)
    answer = _raw(front, f"{head}Authorization: Bearer {token}\n\n0\n\nGET /smuggled HTTP/1.1\nHost: a\n\n")
    assert status_of(answer) in (0, 400, 501) or b"/smuggled" not in answer
    assert not any("smuggled" in str(request["path"]) for request in front.vision.requests[seen:])


#: (path as sent, path that the cluster may see; None where it must be refused).
PATHS: list[tuple[str, str | None]] = [
    ("/a/../b", "/b"),
    ("/a/./b", "/a/b"),
    ("/a//b", "/a/b"),
    ("/%61", "/a"),
    ("/a/%2e%2e/b", "/b"),
    ("/a/%2E%2e/b", "/b"),
    ("/a/.%2e/b", "/b"),
    ("/../../x", "/x"),
    ("/a%2fb", None),
    ("/a%2Fb", None),
    ("/a%5cb", None),
    ("/a%5Cb", None),
    ("/a\\b", None),
    ("/a%00b", None),
    ("/a%zz", None),
    ("/a%2", None),
    ("/api/authenticate", None),
    ("/API/authenticate", None),
    ("//api/authenticate", None),
    ("/api//authenticate", None),
    ("/api/./authenticate", None),
    ("/x/../api/authenticate", None),
    ("/x/%2e%2e/api/authenticate", None),
    ("/api/authenticat%65", None),
    ("/api/authenticate/", None),
    ("/api/authenticate?x=1", None),
    ("/api/authenticate;x", None),
    ("/api/authentication_mode", "/api/authentication_mode"),
    ("/serve/../api/authenticate", None),
    ("/serve/digits/../../api/authenticate", None),
    ("/ray.rpc.RayletDriver/../api/authenticate", None),
    ("http://evil/api/authenticate", None),
    ("http://evil/api/version", None),
    ("http://a/api/version", None),
    ("/a;x=1/b", "/a;x=1/b"),
    ("/%c0%af", "/%C0%AF"),
    ("/%252e%252e/b", "/%252e%252e/b"),
    ("/a/..;/b", "/a/..;/b"),
]


@pytest.mark.parametrize(("path", "seen"), PATHS, ids=[path for path, _ in PATHS])
def test_a_path_is_read_once_or_refused(front: Front, path: str, seen: str | None) -> None:
    token = sign(front.keys, front.claims())
    before = len(front.vision.requests)
    answer = _raw(
        front, f"POST {path} HTTP/1.1\nHost: a\nConnection: close\nAuthorization: Bearer {token}\nContent-Length: 0\n\n"
    )
    got = [str(request["path"]) for request in front.vision.requests[before:]]
    if seen is None:
        assert got == []
        assert status_of(answer) in (400, 403)
    else:
        assert got == [seen]


def test_a_dotted_path_cannot_turn_a_key_for_inference_into_one_for_the_dashboard(front: Front) -> None:
    for path in ("/serve/digits/../../api/jobs/", "/serve/../api/jobs/", "/serve/%2e%2e/api/jobs/"):
        answer = _raw(front, f"GET {path} HTTP/1.1\nHost: a\nAuthorization: Bearer {front.api_keys['all']}\n\n")
        assert status_of(answer) == 401


def test_a_viewer_may_look_at_the_dashboard_but_not_submit(front: Front) -> None:
    token = sign(front.keys, front.claims(role="viewer"))
    assert front.get("/api/jobs/", token).status_code == 200
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = front.send(method, "/api/jobs/", token)
        assert answer.status_code == 403
        assert answer.json()["code"] == "role_forbids"


def test_an_operators_token_reaches_no_cluster(front: Front) -> None:
    token = front.tokens.issue("olga", tenant=None, role="operator").token
    answer = front.get("/", token)
    assert (answer.status_code, answer.json()["code"]) == (403, "no_tenant")


def test_a_tenant_without_a_session_is_told_how_to_get_one(front: Front) -> None:
    token = sign(front.keys, front.claims(tenant="vision2"))
    answer = front.get("/", token)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_session")
    assert "polyray env" in answer.json()["hint"]


def test_a_token_that_names_its_cluster_goes_there_and_not_to_the_default(front: Front) -> None:
    assert front.get("/", sign(front.keys, front.claims(cluster=A))).status_code == 200
    assert front.get("/", sign(front.keys, front.claims(cluster=B))).status_code == 404
