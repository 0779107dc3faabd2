"""Data, models, keys, costs, tenants, the operator's file; and how everything is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from polyray.cli.render import safe
from polyray.supervise.lock import SupervisorLock
from support.live_api import LiveApi

from .conftest import Run


def test_a_dataset_is_converted_hashed_sent_and_shown(ada: Run, home: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "label": [0, 1]}), home / "digits.parquet")
    result = ada("data", "publish", str(home / "digits.parquet"), "--name", "digits")
    assert result.code == 0, result.err
    assert "digits@1" in result.out
    assert "digits@1" in ada("data", "ls").out
    shown = ada("data", "show", "digits@1")
    assert "label" in shown.out
    assert "part-00000.parquet" in shown.out
    assert json.loads(ada("data", "show", "digits@1", "-o", "json").out)["rows"] == 2


def test_a_version_is_named_whole(ada: Run) -> None:
    result = ada("data", "show", "digits")
    assert result.code == 2
    assert "digits@1" in result.err


def test_a_keys_text_is_printed_once_alone_on_standard_output(ada: Run) -> None:
    made = ada("key", "create", "demo", "--days", "7")
    assert made.code == 0, made.err
    assert made.out.startswith("pr_")
    assert made.out.count("\n") == 1
    listed = ada("key", "ls", "-o", "json")
    assert made.out.strip() not in listed.out
    key_id = json.loads(listed.out)[0]["key_id"]
    assert ada("key", "revoke", key_id).code == 0


def test_a_key_for_a_service_that_there_is_not_is_made_with_a_warning(ada: Run) -> None:
    made = ada("key", "create", "early", "--service", "digtis")
    assert made.code == 0, made.err
    assert made.out.startswith("pr_")
    assert "there is no service digtis now" in made.err


def test_costs_and_tenants_are_shown(ada: Run) -> None:
    assert "$0.00" in ada("cost").out
    assert "vision" in ada("tenant", "ls").out
    assert "speech" not in ada("tenant", "ls").out
    assert ada("cost", "--month", "2026-13").code == 2


def test_status_says_the_isolation_grade_and_what_it_means(ada: Run) -> None:
    shown = ada("status").out
    assert "process: tenants must trust each other" in shown
    assert "fabric" in shown


def test_only_an_operator_applies_the_platforms_file(ada: Run, home: Path) -> None:
    (home / "platform.yaml").write_text(yaml.safe_dump({"tenants": {"vision": {}}}))
    result = ada("apply", str(home / "platform.yaml"))
    assert result.code == 3
    assert "role admin may not" in result.err


def test_an_operator_applies_a_file_and_applies_it_again(olga: Run, home: Path) -> None:
    file = {
        "tenants": {
            "vision": {"quota": {"cpu": 64, "memory": "256GiB", "h100": 8}, "members": {"ada": "admin"}},
            "speech": {"quota": {"cpu": 64, "memory": "256GiB", "h100": 8}, "members": {"bob": "admin"}},
            "robots": {"quota": {"cpu": 1, "memory": "1GiB"}, "budget_usd_per_month": 3.5},
        },
        "users": {name: {"password": f"{name}-password"} for name in ("ada", "bob", "olga")},
        "operators": ["olga"],
    }
    (home / "platform.yaml").write_text(yaml.safe_dump(file))
    first = olga("apply", str(home / "platform.yaml"))
    assert first.code == 0, first.err
    assert "robots" in first.err
    assert "nothing to change" in olga("apply", str(home / "platform.yaml")).err
    assert "robots" in olga("tenant", "ls").out


def test_the_same_data_comes_as_table_json_and_yaml(ada: Run) -> None:
    assert json.loads(ada("whoami", "-o", "json").out) == yaml.safe_load(ada("whoami", "-o", "yaml").out)
    assert "ada" in ada("whoami").out


def test_an_empty_list_leaves_standard_output_empty_or_an_empty_list(ada: Run) -> None:
    assert ada("service", "ls").out == ""
    assert json.loads(ada("service", "ls", "-o", "json").out) == []


@pytest.mark.parametrize("argv", [["nosuch"], ["job"], ["job", "show"], ["ps", "--nosuch"], ["ps", "-o", "xml"]])
def test_a_wrong_command_line_is_refused_in_words(run: Run, argv: list[str]) -> None:
    result = run(*argv)
    assert result.code in {0, 2}
    assert "Traceback" not in result.err + result.out
    if result.code:
        assert "error: " in result.err or "Usage" in result.out + result.err


def test_no_platform_at_all_is_said_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYRAY_API_URL")
    result = run("ps")
    assert result.code == 6
    assert "polyray up" in result.err


def test_a_platform_without_an_address_yet_is_said_to_be_starting(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYRAY_API_URL")
    run_dir = home / "state" / "polyray" / "run"
    run_dir.mkdir(parents=True)
    supervisor = SupervisorLock(run_dir / "supervisor.pid")
    assert supervisor.take()
    result = run("ps")
    supervisor.release()
    assert result.code == 6
    assert "is starting" in result.err


def test_a_platform_that_was_killed_is_told_as_such_at_once(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYRAY_API_URL")
    run_dir = home / "state" / "polyray" / "run"
    (run_dir / "components").mkdir(parents=True)
    ended = {"process": {"pid": 2**22, "start_ticks": 1, "boot_id": "one"}, "command_digest": ""}
    (run_dir / "components" / "server.json").write_text(json.dumps(ended))
    told = {"pid": 2**22, "failures": 0, "failing": False, "last_exit": ""}
    (run_dir / "supervisor.json").write_text(json.dumps({"stopping": False, "components": {"server": told}}))
    (run_dir / "endpoints.json").write_text(json.dumps({"api_url": "http://127.0.0.1:9"}))
    result = run("ps")
    assert result.code == 6
    assert "was killed" in result.err
    assert "'polyray up' goes on where it was" in result.err
    status = run("status")
    assert status.code == 6
    assert status.out.splitlines()[1].split() == ["server", "ended"]


def test_what_a_tenant_wrote_cannot_act_on_a_terminal() -> None:
    assert safe("a\x1b[2Jb\r\u202ec\u200b\x85\n") == "a\\x1b[2Jb\\r\\u202ec\\u200b\\x85\\n"
    assert safe("naïve 文件 ✓") == "naïve 文件 ✓"
    assert safe("a\udcff") == "a\\udcff"


def test_the_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['polyray', '--help']\n"
        "from polyray.cli.main import main\n"
        "main()\n"
        "heavy = {'ray', 'torch', 'pyarrow', 'httpx', 'pydantic', 'sqlalchemy', 'fastapi', 'yaml', 'rich'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.endswith("HEAVY []\n")


def test_a_reader_that_has_enough_is_no_error(run: Run, api: LiveApi) -> None:
    program = f"{sys.executable} -m polyray.cli.main --help | head -n 1; echo ${{PIPESTATUS[0]}}"
    out = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "0"
    assert out.stderr == ""


def test_a_group_without_its_command_shows_its_help_and_no_error(ada: Run) -> None:
    shown = ada("job")
    assert shown.code == 2
    assert shown.err.startswith("Usage: polyray job")
    assert "error" not in shown.err
