"""Services for systemd: what systemd itself says of them, what restricts them, and that no secret is in any."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenserve.commands.units import units
from greenserve.supervision.service_units import control_plane_unit, gateway_unit
from pools.agent.systemd_units import actuator_unit, agent_unit
from pools.gateway.__main__ import _config
from pools.wire.snapshot_signature import SnapshotSigner
from tests.fakes.certificates import Authority

ANALYZE = shutil.which("systemd-analyze")
PYTHON = Path(sys.executable)
# What `systemd-analyze security` says at most, of ten; docs/nodes.md has the same figures.
EXPOSURE = {"agent": 2.9, "actuator": 2.1, "control-plane": 1.9, "gateway": 1.9}


def made(folder: Path) -> dict[str, str]:
    settings = folder / "settings of 100 %" / "node-box.env"
    settings.parent.mkdir(exist_ok=True)
    settings.touch()
    more = ("--gpus", "nvml", "--vllm", "/opt/my vllm/bin/vllm")
    return {
        "agent": agent_unit("box", "daemon", settings, folder, more),
        "actuator": actuator_unit(1000, PYTHON),
        "control-plane": control_plane_unit("daemon", PYTHON, Path("/etc/greenserve/greenserve.env")),
        "gateway": gateway_unit("daemon", PYTHON, Path("/etc/greenserve/redis-url"), ("--port", "8080")),
    }


@pytest.mark.skipif(
    ANALYZE is None, reason="no systemd-analyze on the PATH; the distribution's package is called systemd"
)
def test_systemd_takes_all_units_and_calls_each_as_little_exposed_as_documented(tmp_path: Path) -> None:
    paths = []
    for name, text in made(tmp_path).items():
        paths.append(tmp_path / f"greenserve-{name}.service")
        paths[-1].write_text(text)
    done = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", *map(str, paths)], capture_output=True, text=True, timeout=30
    )
    ours = [line for line in done.stderr.splitlines() if "greenserve" in line]
    assert ours == []
    for name, path in zip(EXPOSURE, paths, strict=True):
        words = [str(ANALYZE), "security", "--offline=true", "--no-pager", str(path)]
        said = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout
        figure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
        assert figure is not None
        assert float(figure[1]) <= EXPOSURE[name], name


def test_units_leave_out_what_would_break_an_engine_or_compiled_code(tmp_path: Path) -> None:
    texts = made(tmp_path)
    assert "KillMode=process" in texts["agent"]
    for broken in ("PrivateTmp=", "PrivateDevices=", "ProtectClock=", "DeviceAllow=", "MemoryDenyWriteExecute="):
        assert broken not in texts["agent"], "engines outlive the agent, use GPUs and compile"
    assert "MemoryDenyWriteExecute=" not in texts["control-plane"] + texts["gateway"], "Numba compiles"
    assert "MemoryDenyWriteExecute=yes" in texts["actuator"]
    assert "PrivateDevices=" not in texts["actuator"]
    assert "ProtectClock=" not in texts["actuator"], "it would close all devices but the clock's"
    for text in texts.values():
        for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "LockPersonality=yes", "RestrictNamespaces=yes"):
            assert line in text.splitlines()
        for setting in ("CapabilityBoundingSet=", "RestrictAddressFamilies=", "SystemCallFilter=", "ProtectHome="):
            assert f"\n{setting}" in text


def test_agent_writes_nowhere_but_beside_its_settings_and_in_temporary_folders(tmp_path: Path) -> None:
    text = made(tmp_path)["agent"]
    keep = str(tmp_path / "settings of 100 %%")
    assert f'ReadWritePaths="{keep}" /tmp /var/tmp\n' in text
    assert f'Environment="HOME={keep}"\n' in text


def test_actuators_python_takes_nothing_from_its_surroundings() -> None:
    text = actuator_unit(1000, PYTHON)
    assert f"ExecStart={PYTHON} -I -m pools.actuator --allow-uid 1000 " in text
    assert "WorkingDirectory" not in text


def test_gateways_unit_is_a_command_that_the_gateway_takes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pem").path
    (tmp_path / "redis-url").write_text("rediss://:hush@cache/0")
    (tmp_path / "snapshot.pub").write_bytes(SnapshotSigner.made().public_pem)
    trusts = ("--engine-authority", str(authority), "--snapshot-key-file", str(tmp_path / "snapshot.pub"))
    given = (*trusts, "--host", "10.0.0.2", "--port", "9000")
    done = CliRunner().invoke(units, ["gateway", "--user", "gate", *given])
    assert done.exit_code == 0, done.output
    (line,) = re.findall(r"^ExecStart=(.*\\\n.*)$", done.output, re.MULTILINE)
    line = line.replace("${CREDENTIALS_DIRECTORY}", str(tmp_path)).replace("${STATE_DIRECTORY}", str(tmp_path))
    words = shlex.split(line.replace("\\\n", " "))
    config = _config(words[3:])
    assert (config.host, config.port, config.redis_url) == ("10.0.0.2", 9000, "rediss://:hush@cache/0")
    assert config.engine_trust is not None
    assert config.verifier is not None
    assert "User=gate\n" in done.output
    assert "LoadCredential=redis-url:/etc/greenserve/redis-url\n" in done.output


def test_command_prints_the_control_plane_and_refuses_an_actuator_of_changeable_code() -> None:
    done = CliRunner().invoke(units, ["control-plane", "--user", "green"])
    assert done.output.startswith("# /etc/systemd/system/greenserve.service\n")
    assert f"ExecStart={PYTHON} -m greenserve up\n" in done.output
    refused = CliRunner().invoke(units, ["actuator", "--user", "root"])
    assert refused.exit_code == 1
    assert "others can change what it would run" in refused.output
    assert "python3 -m venv /opt/greenserve" in refused.output
