"""What no type checker sees: the shape of the tree, and who may do what."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
ROOTS = ("platform", "tenants", "autoscaler", "serving")

#: Modules that run in the core's driver, beside user code, or only write the command line of one.
MAY_IMPORT_RAY = {"fabric", "train", "jobs/runner.py", "serving/application.py", "tenants/ray_start.py"}


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the namespace, as (path under `polyray/`, file)."""
    for root in ROOTS:
        package = REPOSITORY / root / "polyray"
        for file in sorted(package.rglob("*.py")):
            yield file.relative_to(package).as_posix(), file


def test_the_standard_librarys_platform_is_not_shadowed_from_any_directory() -> None:
    standard = sysconfig.get_path("stdlib")
    for directory in (REPOSITORY, *(REPOSITORY / root for root in ROOTS)):
        found = subprocess.run(
            [sys.executable, "-c", "import platform; platform.python_version(); print(platform.__file__)"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.startswith(standard), directory


@pytest.mark.parametrize("root", ROOTS)
def test_the_namespace_has_no_init_so_that_all_roots_can_be_parts_of_it(root: str) -> None:
    assert not (REPOSITORY / root / "__init__.py").exists()
    assert not (REPOSITORY / root / "polyray" / "__init__.py").exists()


def test_no_module_is_in_two_roots() -> None:
    names = [name for name, _ in sources()]
    assert len(names) == len(set(names))


def state_writes(tree: ast.Module) -> Iterator[int]:
    """Lines that assign `.state` of something else than `self`, or give `state=` to a row or an UPDATE."""
    rows = {"Workload", "Cluster", "Lease", "Node", "values"}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets):
                written = [item for target in targets for item in ast.walk(target)]
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
                written = list(ast.walk(target))
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), keywords=keywords):
                if called in rows and any(keyword.arg == "state" for keyword in keywords):
                    yield node.lineno
                if called == "setattr" and any(isinstance(a, ast.Constant) and a.value == "state" for a in node.args):
                    yield node.lineno
                continue
            case _:
                continue
        for item in written:
            match item:
                case ast.Attribute(attr="state", value=ast.Name(id="self")):
                    pass
                case ast.Attribute(attr="state", ctx=ast.Store()):
                    yield node.lineno


def test_the_states_of_rows_are_written_in_one_place() -> None:
    found = {
        f"{name}:{line}"
        for name, file in sources()
        if name != "store/steps.py"
        for line in state_writes(ast.parse(file.read_text()))
    }
    assert not found


def test_the_search_for_state_writes_finds_them() -> None:
    for text in (
        "row.state = 'x'",
        "a, row.state = 1, 2",
        "Lease(state='x')",
        "setattr(row, 'state', 'x')",
        "a.b.state += 1",
    ):
        assert list(state_writes(ast.parse(text))) == [1], text
    for text in ("self.state = 1", "x = row.state", "app.state.store = 1", "Route(state='x')"):
        assert not list(state_writes(ast.parse(text))), text


def test_only_the_core_driver_and_what_runs_in_slices_import_ray() -> None:
    for name, file in sources():
        imported = {
            alias.name if isinstance(node, ast.Import) else node.module or ""
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        rays = {module for module in imported if module.split(".")[0] == "ray"}
        # The generated messages of Ray's protocols are data, not Ray.
        if all(module.startswith("ray.core.generated") for module in rays):
            continue
        assert name in MAY_IMPORT_RAY or name.split("/")[0] in MAY_IMPORT_RAY, f"{name} imports {sorted(rays)}"


def test_importing_the_control_plane_does_not_import_ray_or_torch() -> None:
    modules = ["polyray.api.deps", "polyray.data.manifest", "polyray.jobs.controller", "polyray.tenants.controller"]
    code = f"import sys, {', '.join(modules)}; print(*sorted({{'ray', 'torch', 'pyarrow'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_the_command_line_does_not_load_the_control_plane() -> None:
    loaded = "{'ray', 'torch', 'pyarrow', 'sqlalchemy', 'fastapi'} & set(sys.modules)"
    code = f"import sys, polyray.cli.main; print(*sorted({loaded}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
