"""T01-T03: forged and edge tokens get the same verdict from HAProxy and from the API's own verifier."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from polyray.core.errors import Unauthenticated
from polyray.identity.keys import SigningKeys
from support.front import B, Front
from support.tokens import sign

FAR = 10**11
Case = Callable[[Front], str]


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _raw(front: Front, header: Any, payload: str, *, sign_it: bool = True) -> str:
    """Sign a payload as it stands, valid JSON or not."""
    key = front.keys.signing()
    text = f"{_encoded(json.dumps(header).encode())}.{_encoded(payload.encode())}"
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(text.encode(), key.private)
    return f"{text}.{_encoded(signature) if sign_it else ''}"


def _header(front: Front, **more: Any) -> dict[str, Any]:
    return {"alg": "RS256", "typ": "JWT", "kid": front.keys.signing().kid, **more}


def _hs256_with_public_key(front: Front) -> str:
    """The classic: the public key's text as an HMAC secret. PyJWT refuses to make it, so it is made by hand."""
    header = _header(front, alg="HS256")
    text = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(front.claims()).encode())}"
    signature = hmac.digest(front.keys.signing().public_pem.encode(), text.encode(), "sha256")
    return f"{text}.{_encoded(signature)}"


def _none(front: Front, word: str, signature: str = "") -> str:
    header = _header(front, alg=word)
    return f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(front.claims()).encode())}.{signature}"


def _claims(**changes: Any) -> Case:
    return lambda front: sign(front.keys, front.claims(**changes))


def _late(**seconds: int) -> Case:
    """Claims whose times are moved from now."""

    def case(front: Front) -> str:
        now = front.clock.now_ms() // 1000
        return sign(front.keys, front.claims(**{name: now + offset for name, offset in seconds.items()}))

    return case


def _payload(change: Callable[[str], str]) -> Case:
    """A good payload's text, changed, with a good signature."""
    return lambda front: _raw(front, _header(front), change(json.dumps(front.claims(exp=FAR), separators=(",", ":"))))


def _with_kid(kid: Any) -> Case:
    return lambda front: sign(front.keys, front.claims(), kid=kid)


def _other_key(front: Front, **header: Any) -> str:
    stranger = generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(front.claims(), stranger, algorithm="RS256", headers=_header(front, **header))


def _tampered(front: Front) -> str:
    head, _, signature = sign(front.keys, front.claims()).split(".")
    return f"{head}.{_encoded(json.dumps(front.claims(role='admin', tenant='speech')).encode())}.{signature}"


def _spare_bits(front: Front) -> str:
    """The last character of a signature of 256 bytes has four bits to spare: other ones mean the same bytes."""
    token = sign(front.keys, front.claims())
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + letters[letters.index(token[-1]) ^ 1]


def _issuer_token(front: Front, kind: str) -> str:
    """What the built-in issuer signs with its own keys, and, worse, what it would if it had the platform's."""
    now = front.clock.now_ms() // 1000
    claims = {"iss": "http://127.0.0.1:8470/issuer", "aud": "polyray-cli", "sub": "ada", "typ": kind, "exp": now + 900}
    return sign(front.keys, claims | {"iat": now, "nbf": now})


def _issuer_keys(front: Front) -> str:
    directory = front.running.state_dir / "issuer-keys"
    return sign(SigningKeys(directory, "issuer"), front.claims())


GOOD: dict[str, Case] = {
    "a good token": _claims(),
    "a good token of a viewer": _claims(role="viewer"),
    "nbf and iat within the leeway": _late(nbf=9, iat=9),
    "expires in two seconds": _late(exp=2),
}

BAD: dict[str, tuple[str, Case]] = {
    "alg none": ("bad_alg", lambda front: _none(front, "none", "AA")),
    "alg none without signature": ("malformed", lambda front: _none(front, "none")),
    "alg nOnE": ("bad_alg", lambda front: _none(front, "nOnE", "AA")),
    "alg empty": ("bad_alg", lambda front: _none(front, "", "AA")),
    "HS256 with the public key": ("bad_alg", _hs256_with_public_key),
    "RS512": (
        "bad_alg",
        lambda front: jwt.encode(
            front.claims(), front.keys.signing().private, algorithm="RS512", headers={"kid": front.keys.signing().kid}
        ),
    ),
    "alg rs256 in lower case": ("bad_alg", lambda front: _raw(front, _header(front, alg="rs256"), "{}")),
    "unknown kid": ("unknown_kid", _with_kid("0123456789abcdef")),
    "kid is a path": ("unknown_kid", _with_kid("../../../dev/null")),
    "kid is the path of our own key": ("unknown_kid", lambda f: _with_kid(f"keys/{f.keys.signing().kid}.pem")(f)),
    "kid is SQL": ("unknown_kid", _with_kid("' OR 1=1 --")),
    "kid is empty": ("unknown_kid", _with_kid("")),
    "kid is missing": ("unknown_kid", lambda f: _raw(f, {"alg": "RS256"}, json.dumps(f.claims()))),
    "kid is a number": ("unknown_kid", lambda f: _raw(f, {"alg": "RS256", "kid": 5}, json.dumps(f.claims()))),
    "our kid with a stranger's key": ("bad_signature", _other_key),
    "a stranger's key in jwk and jku": (
        "bad_signature",
        lambda front: _other_key(front, jku="http://127.0.0.1:1/jwks", jwk={"kty": "RSA"}, x5u="http://127.0.0.1:1/"),
    ),
    "crit": ("bad_alg", lambda front: sign(front.keys, front.claims(), crit=["exp"])),
    "unencoded payload": ("bad_alg", lambda front: _raw(front, _header(front, b64=False), json.dumps(front.claims()))),
    "claims changed after signing": ("bad_signature", _tampered),
    "signature cut": ("bad_signature", lambda front: sign(front.keys, front.claims())[:-8]),
    "signature missing": ("malformed", lambda f: _raw(f, _header(f), json.dumps(f.claims()), sign_it=False)),
    "signature with other spare bits": ("bad_signature", _spare_bits),
    "signature with line feed": ("malformed", lambda front: sign(front.keys, front.claims()) + "%0A"),
    "four parts": ("malformed", lambda front: sign(front.keys, front.claims()) + ".AAAA"),
    "padding": ("malformed", lambda front: sign(front.keys, front.claims()) + "=="),
    "not a token": ("malformed", lambda front: "not-a-token"),
    "wrong issuer": ("bad_issuer", _claims(iss="polyray2")),
    "issuer missing": ("bad_issuer", _claims(iss=None)),
    "wrong audience": ("bad_audience", _claims(aud="polyray-cli")),
    "audience missing": ("bad_audience", _claims(aud=None)),
    "audience is a list with ours": ("bad_audience", _claims(aud=["other", "polyray"])),
    "an ID token": ("bad_issuer", lambda front: _issuer_token(front, "ID")),
    "an issuer's access token": ("bad_issuer", lambda front: _issuer_token(front, "Bearer")),
    "signed with the issuer's keys": ("unknown_kid", _issuer_keys),
    "expired": ("token_expired", _late(exp=-1)),
    "exp is now": ("token_expired", _late(exp=0)),
    "exp is zero": ("token_expired", _claims(exp=0)),
    "exp missing": ("bad_claims", _claims(exp=None)),
    "exp is a string": ("bad_claims", _claims(exp=str(FAR))),
    "exp is negative": ("bad_claims", _claims(exp=-1)),
    "exp is true": ("bad_claims", _claims(exp=True)),
    "exp is a fraction": ("bad_claims", _claims(exp=FAR + 0.5)),
    "exp is 1e400": ("bad_claims", _payload(lambda text: text.replace(f'"exp":{FAR}', '"exp":1e400'))),
    "exp is 1e10": ("bad_claims", _payload(lambda text: text.replace(f'"exp":{FAR}', '"exp":1e10'))),
    "exp has 30 digits": ("bad_claims", _payload(lambda text: text.replace(f'"exp":{FAR}', f'"exp":{10**30}'))),
    "exp is a list": ("bad_claims", _claims(exp=[FAR])),
    "nbf in a minute": ("token_not_yet_valid", _late(nbf=61)),
    "nbf is a string": ("bad_claims", _claims(nbf="0")),
    "nbf missing": ("bad_claims", _claims(nbf=None)),
    "iat in a minute": ("token_not_yet_valid", _late(iat=61)),
    "iat missing": ("bad_claims", _claims(iat=None)),
    "subject missing": ("bad_claims", _claims(sub=None)),
    "subject is empty": ("bad_claims", _claims(sub="")),
    "session missing": ("bad_claims", _claims(sid=None)),
    "session is no id": ("bad_claims", _claims(sid="../etc")),
    "role missing": ("bad_claims", _claims(role=None)),
    "role nobody has": ("bad_claims", _claims(role="root")),
    "operator with a tenant": ("bad_claims", _claims(role="operator")),
    "tenant missing": ("bad_claims", _claims(tenant=None)),
    "tenant in upper case": ("bad_claims", _claims(tenant="VISION")),
    "tenant with a newline": ("bad_claims", _claims(tenant="vision\n")),
    "claims are a list": ("", lambda front: _raw(front, _header(front), "[1]")),
    "claims are no JSON": ("", lambda front: _raw(front, _header(front), "{")),
    "revoked": ("token_revoked", lambda front: sign(front.keys, front.claims(sid=front.revoked[0]))),
    "suspended tenant": ("tenant_suspended", _claims(tenant="audio")),
}


def verdict_of_api(front: Front, token: str) -> str:
    try:
        front.tokens.verify(token)
    except Unauthenticated as error:
        return error.reason
    return "accepted"


def verdict_of_gateway(front: Front, token: str) -> str:
    answer = front.get("/api/version", token)
    if answer.status_code == 200:
        return "accepted"
    body = answer.json()
    assert set(body) == {"code", "message", "hint"}
    return str(body["code"])


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD)
def test_both_let_a_good_token_pass(front: Front, case: Case) -> None:
    token = case(front)
    assert (verdict_of_gateway(front, token), verdict_of_api(front, token)) == ("accepted", "accepted")


@pytest.mark.parametrize(("reason", "case"), BAD.values(), ids=BAD)
def test_both_refuse_a_bad_token_for_the_same_reason(front: Front, reason: str, case: Case) -> None:
    token = case(front)
    seen = len(front.vision.requests)
    gateway, api = verdict_of_gateway(front, token), verdict_of_api(front, token)
    assert "accepted" not in (gateway, api)
    if reason:
        assert (gateway, api) == (reason, reason)
    assert len(front.vision.requests) == seen, "a refused request reached the cluster"


def test_a_token_for_another_tenants_cluster_reads_as_one_for_no_cluster(front: Front) -> None:
    foreign = front.get("/", sign(front.keys, front.claims(cluster=B)))
    absent = front.get("/", sign(front.keys, front.claims(cluster="clu-000000000000")))
    assert foreign.status_code == absent.status_code == 404
    assert foreign.content == absent.content


def test_a_withdrawn_key_is_unknown_to_both_at_once(front: Front) -> None:
    old = front.keys.signing().kid
    token = sign(front.keys, front.claims())
    front.keys.rotate()
    front.running.gateway.apply(front.routes())
    assert verdict_of_gateway(front, token) == verdict_of_gateway(front, sign(front.keys, front.claims())) == "accepted"
    front.keys.retire(old)
    front.running.gateway.apply(front.routes())
    assert verdict_of_gateway(front, token) == "unknown_kid"
