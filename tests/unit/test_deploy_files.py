"""deploy/ and docker/ beside rules and dashboards, and docs/watching.md: what can be checked of them without running them."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from node.config import PREFIX, NodeSettings
from tests.tools.metric_table import PAGE, renewed
from tests.tools.promtool import ROOT

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
MONITOR = "127.0.0.1:28483"


class Unit(configparser.RawConfigParser):
    """A systemd unit: names keep their case."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit(path: Path) -> configparser.SectionProxy:
    read = Unit(strict=False)
    read.read(path)
    return read["Service"]


def test_tables_of_the_operators_page_are_those_of_the_code() -> None:
    """`python -m tests.tools.metric_table` brings them up to date."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page)
    assert renewed(page.replace("| `regrow_step` |", "| `regrow_stop` |")) == page, "a wrong row is noticed"


def test_the_operators_page_names_files_that_there_are() -> None:
    named = re.findall(r"`((?:deploy|docker)/[\w./-]+)`", PAGE.read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_are_what_systemd_knows(path: Path, tmp_path: Path) -> None:
    """With a program that is there in the place of ours."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian's package `systemd` has it)")
    text = path.read_text()
    for name, wanted in ((path.name, 0), ("broken.service", 1)):
        here = text.replace("/opt/regrow/bin/regrow", "/bin/true")
        (tmp_path / name).write_text(here if not wanted else here.replace("Restart=on-failure", "Rettart=on-failure"))
        command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert bool(done.stderr.count(name)) == bool(wanted), done.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_let_a_node_leave_in_order(path: Path) -> None:
    service = unit(path)
    program, command, *_ = shlex.split(service["ExecStart"])
    assert program == "/opt/regrow/bin/regrow"
    if command == "join":
        assert float(service["TimeoutStopSec"]) > 120, "longer than timing.leave_notice_s"
        assert "KillSignal" not in service
        assert "--retry" in service["ExecStart"]


@pytest.mark.parametrize("path", [*UNITS, ROOT / "deploy/compose.yaml", ROOT / "docker/Dockerfile"], ids=lambda path: path.stem)
def test_variables_that_a_node_reads_are_settings(path: Path) -> None:
    """A node says of any other that it ignores it."""
    named = {name.lower() for name in re.findall(rf"\b{PREFIX}([A-Z_]+)", path.read_text())}
    assert named <= NodeSettings.__dataclass_fields__.keys()


def test_compose_starts_what_the_configuration_looks_for() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    assert set(services) == {"monitor", "prometheus", "grafana"}
    assert MONITOR in services["monitor"]["command"]
    scraped = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    assert f'["{MONITOR}"]' in scraped and f"http://{MONITOR}/sd" in scraped
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / "deploy" / source).exists(), volume
        if "build" in service:
            assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    dashboards = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/regrow.yml").read_text())
    assert any(f":{dashboards['providers'][0]['options']['path']}:" in volume for volume in services["grafana"]["volumes"])
    provisioned = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    asked = provisioned["datasources"][0]["url"].removeprefix("http://")
    assert f"--web.listen-address={asked}" in services["prometheus"]["command"]


def test_the_image_copies_what_there_is() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
        assert all(f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines() for source in sources), line
