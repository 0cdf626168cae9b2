"""A node's power as its baseboard controller tells it: by Redfish, or by IPMI's DCMI through `ipmitool`."""

from __future__ import annotations

import base64
import re
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from core.ports import PermanentError, RetryableError

from ...http_client import HttpClient
from .polled_power import PolledPowerMeter

TIMEOUT_S = 5.0
_CHASSIS = "/redfish/v1/Chassis"
_DCMI = ("dcmi", "power", "reading")
_WATTS = re.compile(r"Instantaneous power reading:\s*(\d+)\s*Watts")
_OFF = re.compile(r"Power reading state is:\s*deactivated")


class RedfishPower:
    """Asks a chassis for its power: `EnvironmentMetrics` (PowerWatts), or the older `Power` (PowerConsumedWatts).

    The cumulative `EnergykWh` is left aside: many controllers raise it in steps of a kilowatt-hour, which is longer
    than any interval of the ledger; integrated power has what it has, when it was.
    """

    def __init__(self, url: str, login: Path | None = None, trust: Path | None = None) -> None:
        """Takes https://HOST as `url`, or with a chassis' path; `login` is a file of USER:PASSWORD, `trust` of PEM.

        Raises ValueError, PermanentError: what was given cannot be used.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is not of the form https://HOST or https://HOST/redfish/v1/Chassis/ID")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        headers = {"Accept": "application/json"}
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(_secret(login)).decode()
        context = None if trust is None else _trusting(trust)
        self._client = HttpClient(f"{parts.scheme}://{host}:{port}", TIMEOUT_S, headers, context)
        self._chassis = parts.path.rstrip("/") or None
        self._place: tuple[str, bool] | None = None  # of the power, and whether it is of EnvironmentMetrics

    def __call__(self) -> float:
        """Returns watts. Blocks for some time-outs at first, for two of 5 s later. Raises AdapterError."""
        if self._place is None:
            self._place = self._find()
        path, environment = self._place
        power_w = _power_w(self._get(path), environment)
        if power_w is None:
            raise RetryableError(f"Redfish: {path} has no power now")
        return power_w

    def _find(self) -> tuple[str, bool]:
        paths = [self._chassis] if self._chassis else _links(self._get(_CHASSIS).get("Members"))
        found = [place for path in paths if (place := self._place_of(path)) is not None]
        if not found:
            raise PermanentError(f"Redfish: no power in {', '.join(paths) or 'any chassis'}")
        if len(found) > 1:
            raise PermanentError(
                f"Redfish: {len(found)} chassis tell a power ({', '.join(path for path, _ in found)}); one may be part "
                "of another: name the node's own, as https://HOST/redfish/v1/Chassis/ID"
            )
        return found[0]

    def _place_of(self, path: str) -> tuple[str, bool] | None:
        chassis = self._get(path)
        for name, environment in (("EnvironmentMetrics", True), ("Power", False)):
            for link in _links([chassis.get(name)]):
                if _power_w(self._get(link), environment) is not None:
                    return link, environment
        return None

    def _get(self, path: str) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self._client.call("GET", path), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise RetryableError(f"Redfish: {path} cannot be read: {error}") from error
        except PermanentError as error:
            raise PermanentError(f"Redfish: {path}: {error}") from error


class IpmiPower:
    """Asks `ipmitool dcmi power reading`, which needs the right to use /dev/ipmi0."""

    def __init__(self, program: str = "ipmitool") -> None:
        self._program = program

    def __call__(self) -> float:
        """Returns watts. Blocks for at most 5 s. Raises AdapterError."""
        try:
            done = subprocess.run(
                (self._program, *_DCMI), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except FileNotFoundError as error:
            raise PermanentError(f"there is no program '{self._program}': install ipmitool") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RetryableError(f"{self._program} gave no answer: {error}") from error
        found = _WATTS.search(done.stdout)
        if done.returncode != 0 or found is None:
            words = " ".join((done.stderr or done.stdout).split())[:200]
            raise PermanentError(
                f"{self._program} {' '.join(_DCMI)} tells no power ({words or 'no output'}); the agent's user needs "
                "the right to use /dev/ipmi0, and the controller DCMI"
            )
        if _OFF.search(done.stdout):
            raise PermanentError("IPMI: the controller's power reading is deactivated")
        return float(found[1])


def redfish_meter(url: str, login: Path | None, trust: Path | None) -> PolledPowerMeter:
    """Raises ValueError, PermanentError: what was given cannot be used."""
    said = f"the node's power is the baseboard controller's, by Redfish at {urlsplit(url).hostname}"
    return PolledPowerMeter("redfish", RedfishPower(url, login, trust), said)


def ipmi_meter() -> PolledPowerMeter:
    return PolledPowerMeter("ipmi", IpmiPower(), "the node's power is the baseboard controller's, by IPMI (DCMI)")


def _power_w(body: dict[str, Any], environment: bool) -> float | None:
    if environment:
        reading = body.get("PowerWatts")
        value = reading.get("Reading") if isinstance(reading, dict) else None
    else:
        controls = body.get("PowerControl")
        first = controls[0] if isinstance(controls, list) and controls else None
        value = first.get("PowerConsumedWatts") if isinstance(first, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _links(values: object) -> list[str]:
    found = [value.get("@odata.id") for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    return [link for link in found if isinstance(link, str)]


def _secret(path: Path) -> bytes:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise PermanentError(f"{path} can be read by others: chmod 600 {path}")
        found = path.read_bytes().strip()
    except OSError as error:
        raise PermanentError(f"{path} cannot be read: {error.strerror}") from error
    if b":" not in found or b"\n" in found:
        raise PermanentError(f"{path} is not one line USER:PASSWORD")
    return found


def _trusting(path: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:  # SSLError is one
        raise PermanentError(f"{path} holds no certificate that can be used: {error}") from error
