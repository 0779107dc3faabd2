"""HTTP to the platform: time-outs, retries of what may be repeated, problems as errors.

A call is repeated only where that cannot do a thing twice: GET, HEAD, PUT, DELETE, and POST with an
`Idempotency-Key`, which is the same each time. `Retry-After` is honoured; without it the waits double from 0.25 s
to 5 s; both with jitter, so that those who were refused together do not come back together.
"""

from __future__ import annotations

import ipaddress
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from polyray.core.errors import Code, Invalid, PolyrayError, Unavailable
from polyray.sdk.problems import RETRYABLE_STATUSES, error_from

CONNECT_SECONDS = 5.0
#: Between two bytes of an answer.
READ_SECONDS = 60.0
#: No more waiting between a call's retries than this, all together.
PATIENCE_SECONDS = 20.0
#: An answer that does not come in time is asked for again so often.
MAX_TIMEOUTS = 2
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class TokenSource(Protocol):
    def current(self) -> str:
        """Return a token that is valid now.

        Raises:
            Unauthenticated: if there is none and none can be had without the user.
        """

    def renew(self) -> str | None:
        """Return another token after `current` was refused, or None where there is no other."""


class FixedToken:
    def __init__(self, token: str) -> None:
        self._token = token

    def current(self) -> str:
        return self._token

    def renew(self) -> str | None:
        return None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_url(url: str, *, field: str) -> str:
    """Return a base URL without its trailing slash.

    Raises:
        Invalid: if it is not http(s), or if it would carry tokens in clear text over a network.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as error:
        raise Invalid(f"not an address: {error}", field=field, hint="such as https://polyray.example.org") from error
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None:
        raise Invalid("not an http(s) address", field=field, hint="such as https://polyray.example.org")
    if parts.scheme == "http" and not is_loopback(host):
        raise Invalid("tokens do not travel in clear text", field=field, hint=f"use https://{parts.netloc}")
    return url.rstrip("/")


def open_http(url: str) -> httpx.Client:
    """Return a client for a checked URL. Proxies of the environment do not apply to loopback."""
    return httpx.Client(
        base_url=url,
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        trust_env=not is_loopback(urlsplit(url).hostname or ""),
        follow_redirects=False,
        headers={"user-agent": "polyray"},
    )


class Transport:
    def __init__(
        self,
        http: httpx.Client,
        token: TokenSource | None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._http, self._token, self._sleep, self._patience = http, token, sleep, patience_seconds

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        body: Callable[[], Any] | None = None,
    ) -> httpx.Response:
        """Make one call and return its successful answer. `body` makes the bytes anew for each attempt.

        Raises:
            PolyrayError: as the platform told it; `Unavailable` or code `timeout` if it did not answer.
        """
        sent = {**self._authorization(), **(headers or {})}
        repeatable = method in _REPEATABLE or any(name.lower() == "idempotency-key" for name in sent)

        def send() -> httpx.Response:
            return self._http.request(
                method,
                path,
                params=_given(params),
                json=json,
                headers=sent,
                content=body() if body is not None else None,
            )

        return self._tried(send, sent, f"{method} {path}", repeatable=repeatable)

    @contextmanager
    def stream(
        self, path: str, *, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[Iterator[str]]:
        """GET a stream of lines. It ends quietly when the connection breaks: the caller knows whether it was whole."""
        sent = {**self._authorization(), **(headers or {})}

        def send() -> httpx.Response:
            request = self._http.build_request("GET", path, params=_given(params), headers=sent)
            answer = self._http.send(request, stream=True)
            if not answer.is_success:
                answer.read()
            return answer

        answer = self._tried(send, sent, f"GET {path}", repeatable=True)
        try:
            yield _lines_until_broken(answer)
        finally:
            answer.close()

    def pause(self) -> None:
        """Wait before taking up again what broke at once."""
        self._sleep(0.5)

    def _authorization(self) -> dict[str, str]:
        return {} if self._token is None else {"authorization": f"Bearer {self._token.current()}"}

    def _tried(
        self, send: Callable[[], httpx.Response], sent: dict[str, str], what: str, *, repeatable: bool
    ) -> httpx.Response:
        """Send, and send again where that is safe and may help. `sent` are the headers, renewed in place."""
        waited, timeouts, renewed = 0.0, 0, False
        for attempt in itertools.count():
            failure: PolyrayError
            retry_after: float | None = None
            try:
                answer = send()
            except httpx.TimeoutException as error:
                failure = PolyrayError(
                    Code.TIMEOUT, f"{what}: no answer in time", "try again in a moment", retryable=True
                )
                failure.__cause__ = error
                timeouts += 1
            except httpx.TransportError as error:
                failure = _no_answer(self._http.base_url, error)
            else:
                if answer.is_success:
                    return answer
                failure = error_from(answer.status_code, _decoded(answer))
                if answer.status_code == 401 and not renewed and self._token is not None:
                    renewed, fresh = True, self._token.renew()
                    if fresh is not None:
                        sent["authorization"] = f"Bearer {fresh}"
                        continue
                if answer.status_code not in RETRYABLE_STATUSES:
                    raise failure
                retry_after = _retry_after(answer)
            delay = _delay(attempt, retry_after)
            if not repeatable or not failure.retryable or timeouts > MAX_TIMEOUTS or waited + delay > self._patience:
                raise failure
            self._sleep(delay)
            waited += delay
        raise AssertionError("unreachable")


def _delay(attempt: int, retry_after: float | None) -> float:
    """Return the seconds to wait before the next attempt: never less than was asked for, and a little at random."""
    if retry_after is not None:
        return retry_after + random.uniform(0, min(retry_after, 1) / 2)
    longest: float = min(0.25 * 2**attempt, 5)
    return longest * random.uniform(0.5, 1)


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}


def _lines_until_broken(answer: httpx.Response) -> Iterator[str]:
    try:
        yield from answer.iter_lines()
    except httpx.TransportError:
        return


def _no_answer(base_url: httpx.URL, error: Exception) -> Unavailable:
    failure = Unavailable(
        f"the platform at {str(base_url).rstrip('/')} does not answer",
        hint="start it with 'polyray up', or name another with POLYRAY_API_URL",
    )
    failure.__cause__ = error
    return failure


def _decoded(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _retry_after(answer: httpx.Response) -> float | None:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdigit() and len(text) < 6 else None
