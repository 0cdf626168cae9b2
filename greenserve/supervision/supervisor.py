"""Keeps a set of child processes running: restarts what ends, caps logs, writes the process table, stops all in order.

It is single-threaded on purpose: children's leashes are tied to the thread that started them (see `process`).
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from greenserve.process import Child, Identity, Spec, StartError, end, exit_reason
from greenserve.supervision import process_usage
from greenserve.supervision.watchdog import Stall
from pools import wire

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 10.0
STEADY_AFTER_S = 30.0  # a child that ran this long starts afresh at the shortest back-off
LOG_LIMIT_BYTES = 16 * 2**20
TICK_S = 0.1
PUBLISH_EVERY_S = 1.0


def backoff_s(quick_exits: int) -> float:
    """Returns the pause before a restart after `quick_exits` (at least 1) short lives in a row."""
    return min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(quick_exits - 1, 10))


@dataclass(slots=True)
class Slot:
    """A child's place: it outlives the processes that fill it."""

    child: Child
    restarts: int = 0
    quick_exits: int = 0
    due_mono_s: float | None = None  # when to start it again; None while it runs
    last_exit: str = ""
    leave_by_mono_s: float | None = None  # it was dismissed: killed at this time, and not started again
    stall: str = ""  # why it was asked to end, so that it is started again
    kill_mono_s: float = 0.0  # when it is killed then
    stalls: int = 0  # restarts because it made no progress
    stalled_mono_s: float | None = None  # when the last of them was

    def row(self, stopping: bool) -> wire.ProcessRow:
        running = self.due_mono_s is None and self.child.pid is not None
        state = "stopped" if stopping and not running else "running" if running else "restarting"
        used = process_usage.of(self.child.pid) if running and self.child.pid is not None else None
        return wire.ProcessRow(
            name=self.child.spec.name,
            pid=self.child.pid if running else None,
            state=state,
            started_at_s=self.child.started_at_s if running else None,
            restarts=self.restarts,
            log=str(self.child.log),
            last_exit=self.last_exit,
            cpu_s=used.cpu_s if used else None,
            rss_bytes=used.rss_bytes if used else None,
            stalls=self.stalls,
            stalled_s=None if self.stalled_mono_s is None else time.monotonic() - self.stalled_mono_s,
        )


class Supervisor:
    """`report` gets one line per event; `publish` gets the process table each second, and `stalled` says then, by name
    and time of start of those that run, which of them are stuck. Neither must block for long."""

    def __init__(
        self,
        var_dir: Path,
        report: Callable[[str], None],
        publish: Callable[[wire.ProcessTable], None] = lambda _: None,
        stalled: Callable[[Mapping[str, float]], Sequence[Stall]] = lambda _: (),
    ) -> None:
        self.log_dir = var_dir / "log"
        self.table_path = var_dir / "run" / "processes.json"
        self.identities_path = var_dir / "run" / "children.json"
        self.slots: dict[str, Slot] = {}
        self.stop_asked: str | None = None  # the signal's name
        self._report = report
        self._publish = publish
        self._stalled = stalled
        self._published_mono_s = float("-inf")
        self._stopping = False
        self._disk_fault = ""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.table_path.parent.mkdir(parents=True, exist_ok=True)

    def catch_signals(self) -> None:
        """SIGINT and SIGTERM ask for a stop; `run` and `wait_until` notice."""

        def ask(number: int, _: FrameType | None) -> None:
            self.stop_asked = signal.Signals(number).name

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(signal.SIGHUP, ask)

    def end_strays(self) -> None:
        """Ends what an earlier supervisor left running, should any have slipped its leash."""
        try:
            known = msgspec.json.decode(self.identities_path.read_bytes(), type=dict[str, Identity])
        except (FileNotFoundError, msgspec.DecodeError):
            return
        for name, identity in known.items():
            if identity.alive():
                self._report(f"{name} of an earlier run (pid {identity.pid}) still runs: ending it")
                end(identity)
        self.identities_path.unlink(missing_ok=True)

    def start(self, spec: Spec) -> Child:
        """Starts a child and keeps it running from now on. Raises StartError when it cannot be started at all."""
        child = Child(spec, self.log_dir / f"{spec.name}.log")
        self._cap_log(child.log)
        child.start()
        self.slots[spec.name] = Slot(child)
        self._report(f"{spec.name} started (pid {child.pid})")
        self._remember()
        return child

    def tick(self) -> None:
        """One round: notice exits, start again what is due, publish the table."""
        now = time.monotonic()
        changed = False
        for slot in list(self.slots.values()):
            if slot.leave_by_mono_s is not None:
                changed |= self._notice_leaving(slot, slot.leave_by_mono_s, now)
            elif slot.due_mono_s is None:
                changed |= self._notice_exit(slot, now)
            elif now >= slot.due_mono_s and not self._stopping:
                changed |= self._start_again(slot, now)
        if changed:
            self._remember()
        if changed or now - self._published_mono_s >= PUBLISH_EVERY_S:
            self._published_mono_s = now
            self._write_table()
            self._end_stalled()

    def dismiss(self, name: str) -> None:
        """Asks a child to stop, and forgets it once it has; what does not end in time is killed. Returns at once."""
        slot = self.slots[name]
        if slot.leave_by_mono_s is None:
            slot.leave_by_mono_s = time.monotonic() + slot.child.spec.stop_timeout_s
            slot.child.ask_to_stop()

    def run(self, each_round: Callable[[], None]) -> None:
        """Runs the processes until a stop is asked for. `each_round` may start and dismiss others; it is called ten
        times a second and must not block for long."""
        while not self.stop_asked:
            self.tick()
            each_round()
            time.sleep(TICK_S)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Goes on supervising until `condition`, a stop, or the timeout; says whether the condition came true."""
        deadline = time.monotonic() + timeout_s
        while not self.stop_asked and time.monotonic() < deadline:
            self.tick()
            if condition():
                return True
            time.sleep(TICK_S)
        return False

    def stop(self) -> None:
        """Stops all children, the highest rank first; what does not end in time, or on a second Ctrl-C, is killed."""
        self._stopping = True
        asked, self.stop_asked = self.stop_asked, None
        for rank in sorted({slot.child.spec.rank for slot in self.slots.values()}, reverse=True):
            self._stop_wave([slot for slot in reversed(self.slots.values()) if slot.child.spec.rank == rank])
        self._write_table()
        self.identities_path.unlink(missing_ok=True)
        self.stop_asked = asked or self.stop_asked

    # -- inside ------------------------------------------------------------------------------------

    def _stop_wave(self, wave: list[Slot]) -> None:
        running = [slot for slot in wave if slot.due_mono_s is None and slot.child.poll() is None]
        for slot in running:
            slot.child.ask_to_stop()
        asked_mono_s = time.monotonic()
        for slot in running:
            deadline = asked_mono_s + slot.child.spec.stop_timeout_s
            while slot.child.poll() is None and time.monotonic() < deadline and not self.stop_asked:
                time.sleep(0.02)
            by_itself = slot.child.wait_stopped(time.monotonic())
            self._report(f"{slot.child.spec.name} " + ("stopped" if by_itself else "did not stop in time: killed"))
        for slot in wave:
            slot.due_mono_s = float("inf")

    def _notice_exit(self, slot: Slot, now: float) -> bool:
        if slot.stall and now >= slot.kill_mono_s:
            slot.child.wait_stopped(now)
        status = slot.child.poll()
        if status is None:
            return False
        quick = now - slot.child.started_mono_s < STEADY_AFTER_S
        self._plan_restart(slot, now, slot.stall or exit_reason(status), quick=quick)
        slot.stall = ""
        return True

    def _end_stalled(self) -> None:
        """Asks the processes that are stuck to end; `tick` starts them again."""
        running = [slot for slot in self.slots.values() if slot.due_mono_s is None and not slot.stall]
        for stall in self._stalled({slot.child.spec.name: slot.child.started_mono_s for slot in running}):
            words = f"no progress for {stall.for_s:.0f} s"
            if stall.excuse:
                self._report(f"{stall.process}: {words}, and {stall.excuse}: it is left running")
                continue
            slot, now = self.slots[stall.process], time.monotonic()
            slot.stall, slot.kill_mono_s = words, now + slot.child.spec.stop_timeout_s
            slot.stalls, slot.stalled_mono_s = slot.stalls + 1, now
            self._report(f"{stall.process}: {words}: restarting it")
            slot.child.ask_to_stop()

    def _notice_leaving(self, slot: Slot, leave_by_mono_s: float, now: float) -> bool:
        if slot.child.poll() is None and now < leave_by_mono_s:
            return False
        by_itself = slot.child.wait_stopped(now)
        del self.slots[slot.child.spec.name]
        self._report(f"{slot.child.spec.name} " + ("stopped" if by_itself else "did not stop in time: killed"))
        return True

    def _start_again(self, slot: Slot, now: float) -> bool:
        self._cap_log(slot.child.log)
        try:
            slot.child.start()
        except StartError as error:
            self._plan_restart(slot, now, str(error), quick=True)
            return True
        slot.due_mono_s = None
        slot.restarts += 1
        self._report(f"{slot.child.spec.name} restarted (pid {slot.child.pid})")
        return True

    def _plan_restart(self, slot: Slot, now: float, why: str, *, quick: bool) -> None:
        slot.quick_exits = slot.quick_exits + 1 if quick else 1
        pause_s = backoff_s(slot.quick_exits)
        slot.due_mono_s = now + pause_s
        slot.last_exit = why
        self._report(f"{slot.child.spec.name} ended ({why}), again in {pause_s:g} s; its log: {slot.child.log}")

    def _cap_log(self, log: Path) -> None:
        """Moves a log's content aside when it has grown too large. Children append, so they write on at its new end;
        lines written during the copy may be lost. On a disk without room for the copy the log begins anew without it.
        """
        copy = log.with_suffix(".log.1")
        with suppress(OSError):
            if log.stat().st_size <= LOG_LIMIT_BYTES:
                return
            try:
                shutil.copyfile(log, copy)
            except OSError as error:
                self._note_disk(error)
                copy.unlink(missing_ok=True)
            os.truncate(log, 0)

    def _write_table(self) -> None:
        table = wire.ProcessTable(
            at_s=time.time(), processes=[slot.row(self._stopping) for slot in self.slots.values()]
        )
        if self._write(self.table_path, wire.encode(table)) and self._disk_fault:
            self._disk_fault = ""
            self._report(f"{self.table_path.parent} can be written again")
        self._publish(table)
        for slot in self.slots.values():
            self._cap_log(slot.child.log)

    def _remember(self) -> None:
        identities = {name: slot.child.identity for name, slot in self.slots.items() if slot.child.identity}
        self._write(self.identities_path, msgspec.json.encode(identities))

    def _write(self, path: Path, content: bytes) -> bool:
        """Returns whether the disk took it. The processes go on where it does not; Redis has the table, too."""
        try:
            write_whole(path, content)
        except OSError as error:
            self._note_disk(error)
            return False
        return True

    def _note_disk(self, error: OSError) -> None:
        if not self._disk_fault:
            where = error.filename or self.table_path.parent
            self._report(f"{where} cannot be written ({error.strerror}): make room; the processes go on meanwhile")
        self._disk_fault = str(error)


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file in one step: a reader sees the old content or the new. Raises OSError, and leaves the old."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
