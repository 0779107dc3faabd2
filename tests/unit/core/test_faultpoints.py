"""Fault points: passed in silence, unless a test or the environment says what strikes there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from polyray.core import faultpoints
from polyray.core.errors import Invalid, Unavailable
from polyray.core.faultpoints import outside, reach, striking

ROOTS = ("platform", "tenants", "autoscaler", "serving")
TREE = Path(__file__).parents[3]
#: The verbs by which the control plane changes something outside, and of what.
VERBS = {"grant", "release", "start_slice", "kill_slice", "start_driver", "stop_driver", "launch", "terminate", "apply"}
#: And those by which it looks.
VERBS |= {"list", "gangs", "slices"}
SEAMS = ("fabric", "provider", "gateway")
#: Who calls a seam's verb on something that is no seam: implementations, and the fabric's own process.
IMPLEMENTATIONS = (
    "platform/polyray/fabric/",
    "autoscaler/polyray/autoscaler/providers/",
    "tenants/polyray/tenants/sand",
)


def test_a_point_is_passed_in_silence() -> None:
    with outside("cloud.launch"):
        reach("store.commit.before")


def test_what_strikes_sees_each_point_before_and_after_an_effect() -> None:
    seen: list[str] = []
    with striking(seen.append), outside("cloud.launch"):
        seen.append("(launched)")
    assert seen == ["cloud.launch.before", "(launched)", "cloud.launch.after"]


def test_an_effect_that_failed_has_no_after() -> None:
    seen: list[str] = []
    with striking(seen.append), pytest.raises(Unavailable), outside("cloud.launch"):
        raise Unavailable("no answer")
    assert seen == ["cloud.launch.before"]


@pytest.mark.parametrize("told", ["fabric.grant", "fabric.grant=explode", "a@0=exit", "=exit", "A=exit"])
def test_a_fault_that_cannot_be_read_is_refused(told: str) -> None:
    with pytest.raises(Invalid, match="POLYRAY_FAULT"):
        faultpoints.arm({"POLYRAY_FAULT": told})


def test_a_process_dies_at_the_point_its_environment_names_the_time_it_says() -> None:
    program = """
from polyray.core import faultpoints
faultpoints.arm()
for n in range(3):
    with faultpoints.outside("fabric.grant"):
        print(n, flush=True)
"""
    environment = {"POLYRAY_FAULT": "fabric.grant.after@2=exit"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["0", "1"], faultpoints.KILLED)


def test_a_process_records_the_points_it_passes(tmp_path: Path) -> None:
    program = "from polyray.core import faultpoints as f; f.arm(); f.reach('a.b'); f.reach('c.d')"
    environment = {"POLYRAY_FAULT": f"record={tmp_path / 'points'}"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert (tmp_path / "points").read_text().split() == ["a.b", "c.d"]


def test_a_process_strikes_itself_once_as_a_file_asks_that_may_come_later(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from polyray.core import faultpoints
faultpoints.arm()
faultpoints.reach("fabric.grant.after")
if sys.argv[1:]:
    Path(sys.argv[1]).write_text("fabric.grant.after@2=exit")
for n in range(3):
    print(n, flush=True)
    faultpoints.reach("fabric.grant.after")
"""
    asked = tmp_path / "asked"
    environment = {"POLYRAY_FAULT": f"file={asked}"}

    def run(*arguments: str) -> tuple[list[str], int]:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.split(), done.returncode

    assert run(str(asked)) == (["0", "1"], faultpoints.KILLED)
    assert run() == (["0", "1", "2"], 0), "whoever is started in its place lives"


def test_every_effect_on_a_seam_is_surrounded_by_its_points() -> None:
    bare = []
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            place = path.relative_to(TREE).as_posix()
            if not place.startswith(IMPLEMENTATIONS):
                bare += [f"{place}:{line}" for line in _bare_effects(ast.parse(path.read_text()))]
    assert bare == [], "surround these with `outside(...)`"


def _bare_effects(tree: ast.Module) -> list[int]:
    surrounded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and any(_is_outside(item.context_expr) for item in node.items)
        for inner in ast.walk(node)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and id(node) not in surrounded and _is_effect(node)
    ]


def _is_effect(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in VERBS:
        return False
    return any(seam in ast.unparse(call.func.value) for seam in SEAMS)


def _is_outside(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and ast.unparse(expression.func) == "outside"
