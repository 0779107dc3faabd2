from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyray.core.errors import Invalid
from polyray.core.settings import load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory, without settings from outside."""
    for name in [name for name in os.environ if name.startswith("POLYRAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "config" / "polyray").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def test_a_flag_wins_over_the_environment_over_the_project_over_the_user_over_the_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().api_port == 8470
    (home / "config/polyray/config.yaml").write_text("api_port: 1001\ngateway_port: 1001\nhost: 127.0.0.9\n")
    assert load_settings().api_port == 1001
    (home / "project/polyray.yaml").write_text("api_port: 1002\ngateway_port: 1002\n")
    assert load_settings().api_port == 1002
    monkeypatch.setenv("POLYRAY_API_PORT", "1003")
    assert load_settings().api_port == 1003
    assert load_settings(api_port=1004).api_port == 1004
    assert load_settings(api_port=None).api_port == 1003
    assert load_settings().gateway_port == 1002
    assert load_settings().host == "127.0.0.9"


@pytest.mark.parametrize("file", ["project/polyray.yaml", "config/polyray/config.yaml"])
def test_an_unknown_setting_in_a_file_is_named_with_the_file(file: str, home: Path) -> None:
    (home / file).write_text("api_prot: 1\n")
    with pytest.raises(Invalid, match=r"no such setting in .*\.yaml") as refused:
        load_settings()
    assert refused.value.field == "api_prot"
    assert "api_port" in refused.value.hint


@pytest.mark.parametrize("text", ["- a\n", "3\n", "a: [\n", "a: &a 1\nb: *a\n"])
def test_a_file_that_is_no_mapping_is_named(text: str, home: Path) -> None:
    (home / "project/polyray.yaml").write_text(text)
    with pytest.raises(Invalid, match=r"polyray\.yaml"):
        load_settings()


def test_an_empty_file_changes_nothing(home: Path) -> None:
    (home / "project/polyray.yaml").write_text("")
    assert load_settings().api_port == 8470


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(Invalid, match="colour"):
        load_settings(colour="red")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_port", "70000"),
        ("api_port", "-1"),
        ("gateway_port", "many"),
        ("concurrent_starts", "0"),
        ("log_level", "LOUD"),
        ("log_level", "XINFO"),
        ("slice_ports_start", "80"),
        ("slice_ports_end", "24099"),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"POLYRAY_{name.upper()}", value)
    with pytest.raises(Invalid) as refused:
        load_settings()
    assert refused.value.field == name
    assert refused.value.hint


def test_state_lives_in_the_xdg_state_directory_unless_told_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().state_dir == home / "state/polyray"
    monkeypatch.setenv("POLYRAY_STATE_DIR", "here")
    assert load_settings().state_dir == home / "project/here"
    monkeypatch.setenv("HOME", "/home/ada")
    assert load_settings(state_dir=Path("~/polyray")).state_dir == Path("/home/ada/polyray")


def test_the_store_is_sqlite_in_the_state_directory_unless_told_otherwise(home: Path) -> None:
    assert load_settings().store_url == f"sqlite:///{home}/state/polyray/polyray.db"
    assert load_settings(database_url="postgresql://db/polyray").store_url == "postgresql://db/polyray"


def test_two_platforms_on_one_machine_have_short_ray_directories_of_their_own(home: Path) -> None:
    one, other = (load_settings(state_dir=home / name) for name in ("one", "other"))
    assert one.ray_dir != other.ray_dir
    assert one.ray_dir == load_settings(state_dir=home / "one").ray_dir
    assert len(str(one.ray_dir)) <= 20
