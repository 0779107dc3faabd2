from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray import serve

from polyray.core.errors import Invalid
from polyray.serving.application import UNHEALTHY_SECONDS, Watch, load_application


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a user: an application, builders of one, and things that are neither."""
    (tmp_path / "user_app.py").write_text(
        "from ray import serve\n"
        "@serve.deployment\n"
        "class Echo:\n"
        "    def __init__(self, where=None): pass\n"
        "app = Echo.bind()\n"
        "def build(model_dir): return Echo.bind(str(model_dir))\n"
        "def build_plain(): return Echo.bind()\n"
        "def wrong(): return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "user_app"
    sys.modules.pop("user_app", None)


@pytest.mark.parametrize("attribute", ["app", "build", "build_plain"])
def test_an_application_may_be_one_or_be_built_with_the_model_s_directory(module: str, attribute: str) -> None:
    application = load_application(f"{module}:{attribute}", Path("/models/1"))
    assert isinstance(application, serve.Application)
    wanted = ("/models/1",) if attribute == "build" else ()
    assert application._bound_deployment.init_args == wanted


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("no_such_module:app", "no module no_such_module"),
        ("user_app:nothing", "define nothing in user_app"),
        ("user_app:wrong", "not a Serve application"),
        ("user_app:Echo", "not a Serve application"),
    ],
)
def test_what_is_no_application_is_refused_with_the_way_out(module: str, spec: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        load_application(spec, None)


def test_an_application_is_given_up_when_it_fails_or_stays_unhealthy() -> None:
    watch = Watch()
    assert watch.verdict("RUNNING", 0) is None
    assert watch.verdict("UNHEALTHY", 1) is None
    assert watch.verdict("RUNNING", 2) is None, "it recovered, so the clock starts again"
    assert watch.verdict("UNHEALTHY", 3) is None
    assert watch.verdict(None, 3 + UNHEALTHY_SECONDS - 1) is None
    assert watch.verdict("UNHEALTHY", 3 + UNHEALTHY_SECONDS) is not None
    assert Watch().verdict("DEPLOY_FAILED", 0) == "its deployment failed"
