"""The typed chip description and its loader.

One small TOML file describes a chip. Every number is a ``Param``: the value, whether it is published,
measured or assumed, and the source. Nothing in the compiler or the clock holds a rate of its own, so
whoever writes another file gets another chip. A file may ``extends`` another and override single
parameters; what it overrides without saying where the number comes from is marked assumed.
Units are part of the field names (bytes, cycles, hz, ns, pj).
"""

from __future__ import annotations

import math
import os
import tomllib
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from torch_loom.spyrecode.model import Profile

FORMAT = 1  # version of the file format

T = TypeVar("T", int, float)


class ArchError(ValueError):
    """A chip file that is missing, malformed or contradictory. The message names file and field."""


class Basis(StrEnum):
    """How well a number is known."""

    PUBLISHED = "published"
    MEASURED = "measured"
    ASSUMED = "assumed"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Param(_Frozen, Generic[T]):
    """A number with its provenance."""

    value: T
    basis: Basis
    source: str = Field(min_length=1)

    @field_validator("basis", mode="before")
    @classmethod
    def _basis(cls, value: Any) -> Any:
        return Basis(value) if value in list(Basis) else value

    @field_validator("value")
    @classmethod
    def _not_negative(cls, value: T) -> T:
        if not (value >= 0):
            raise ValueError("must not be negative")
        return value


class Clock(_Frozen):
    frequency_hz: Param[float]


class Cores(_Frozen):
    count: Param[int]
    corelets: Param[int]


class Lx(_Frozen):
    bytes: Param[int]  # per core
    reserved_fraction: Param[float]  # share the planner leaves to the system
    stick_bytes: Param[int]
    read_bytes_per_cycle: Param[float]  # per corelet port
    write_bytes_per_cycle: Param[float]  # per corelet port
    strided_elements_per_cycle: Param[float]  # per corelet port, elements that do not lie side by side
    bank_bytes_per_cycle: Param[float]  # per core, reads and writes of all units together
    latency_cycles: Param[float]


class Ddr(_Frozen):
    bytes: Param[int]
    ecc_bytes: Param[int]
    peak_bytes_per_s: Param[float]
    channels: Param[int]
    banks: Param[int]  # per channel
    page_bytes: Param[int]  # per bank
    interleave_bytes: Param[int]  # that lie on one channel before the next follows
    page_open_ns: Param[float]  # of one channel, per page opened
    refresh_ns: Param[float]
    refresh_interval_ns: Param[float]
    request_min_bytes: Param[int]
    request_max_bytes: Param[int]
    request_overhead_ns: Param[float]  # per request, whole memory
    turnaround_ns: Param[float]  # per switch of direction
    turnaround_group_bytes: Param[int]  # served in one direction before a switch
    latency_ns: Param[float]  # from a request to its bytes
    ports: Param[int]  # ways from the ring to the memory, each for an equal share of the cores
    port_bytes_per_cycle: Param[float]


class Dma(_Frozen):
    read_bytes_per_cycle: Param[float]  # per core
    write_bytes_per_cycle: Param[float]  # per core
    window_bytes: Param[int]  # an engine has in flight at most
    streams: Param[int]  # runs of a transfer that are walked in turn
    issue_cycles: Param[float]  # per transfer descriptor
    index_entries: Param[int]  # indirect address buffer
    index_cycles: Param[float]  # per gathered or scattered index


class Pt(_Frozen):
    rows: Param[int]
    columns: Param[int]
    macs_per_element: Param[int]  # 16-bit MAC lanes of one processing element
    step_cycles: Param[float]  # per row of the left operand that passes a stationary block
    fill_cycles: Param[float]  # per pass: fill and drain
    reload_cycles: Param[float]  # per stationary block (rows x macs_per_element of k, columns of n)
    full_rows: Param[float]  # rows of partial sums kept in the array; fewer rows use it less well
    rate_8bit: Param[float]  # multiple of the 16-bit rate
    rate_4bit: Param[float]


class Sfu(_Frozen):
    lanes_16bit: Param[int]
    register_bytes: Param[int]
    simple_cycles: Param[float]  # per vector
    transcendental_cycles: Param[float]  # per vector
    divide_cycles: Param[float]  # per vector
    tree_cycles: Param[float]  # cross-lane fold of one vector
    start_cycles: Param[float]  # per segment: queues fill, pipeline starts


class Queue(_Frozen):
    depth: Param[int]
    slot_bytes: Param[int]


class Ring(_Frozen):
    bytes_per_cycle: Param[float]  # per direction and link
    hop_cycles: Param[float]


class Sync(_Frozen):
    credit_cycles: Param[float]  # from a release to the waiting unit
    issue_cycles: Param[float]  # per loop or synchronisation instruction


class Launch(_Frozen):
    fixed_ns: Param[float]
    correction_ns_per_word: Param[float]  # host
    prologue_cycles_per_word: Param[float]  # device
    table_bytes_per_s: Param[float]


class Link(_Frozen):
    """A link for transfers: to the host or to another card."""

    bytes_per_s: Param[float]
    packet_payload_bytes: Param[int]
    packet_overhead_bytes: Param[int]
    latency_ns: Param[float]  # start-up


class Energy(_Frozen):
    mac_pj: Param[float]
    sfu_op_pj: Param[float]  # one lane operation
    lx_byte_pj: Param[float]
    ddr_byte_pj: Param[float]
    ring_byte_pj: Param[float]  # per hop
    idle_w: Param[float]


class Chip(_Frozen):
    """A chip. Read single numbers through the groups (``chip.pt.rows.value``) or the short names below."""

    format: int
    name: str = Field(min_length=1)
    summary: str
    clock: Clock
    core: Cores
    lx: Lx
    ddr: Ddr
    dma: Dma
    pt: Pt
    sfu: Sfu
    queue: Queue
    ring: Ring
    sync: Sync
    launch: Launch
    pcie: Link
    card: Link
    energy: Energy

    @model_validator(mode="after")
    def _consistent(self) -> Chip:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not supported (this version reads {FORMAT})")
        stick = self.stick_bytes
        checks = [
            (1 <= self.cores <= 1024, f"core.count must be 1..1024, not {self.cores}"),
            (1 <= self.corelets <= 8, f"core.corelets must be 1..8, not {self.corelets}"),
            (stick >= 16 and stick & (stick - 1) == 0, f"lx.stick_bytes must be a power of two, not {stick}"),
            (self.lx_bytes >= stick, f"lx.bytes must hold at least one stick, not {self.lx_bytes}"),
            (self.lx_bytes % stick == 0, f"lx.bytes must be a multiple of the stick, not {self.lx_bytes}"),
            (self.lx.reserved_fraction.value < 1, "lx.reserved_fraction must be below 1"),
            (
                self.ddr.refresh_ns.value < self.ddr.refresh_interval_ns.value,
                "ddr.refresh_ns must be below ddr.refresh_interval_ns",
            ),
            (self.ddr.bytes.value > self.ddr.ecc_bytes.value, "ddr.ecc_bytes must be below ddr.bytes"),
            (self.ddr.request_min_bytes.value % stick == 0, "ddr.request_min_bytes must be whole sticks"),
            (
                self.ddr.request_min_bytes.value <= self.ddr.request_max_bytes.value,
                "ddr.request_max_bytes must not be below ddr.request_min_bytes",
            ),
            (
                self.sfu.lanes_16bit.value * 2 == stick,
                "sfu.lanes_16bit must fill one stick of 16-bit elements",
            ),
        ]
        positive = {
            "clock.frequency_hz": self.clock_hz,
            "ddr.peak_bytes_per_s": self.ddr.peak_bytes_per_s.value,
            "ddr.request_min_bytes": self.ddr.request_min_bytes.value,
            "ddr.channels": self.ddr.channels.value,
            "ddr.banks": self.ddr.banks.value,
            "ddr.page_bytes": self.ddr.page_bytes.value,
            "ddr.interleave_bytes": self.ddr.interleave_bytes.value,
            "ddr.turnaround_group_bytes": self.ddr.turnaround_group_bytes.value,
            "ddr.ports": self.ddr.ports.value,
            "ddr.port_bytes_per_cycle": self.ddr.port_bytes_per_cycle.value,
            "dma.window_bytes": self.dma.window_bytes.value,
            "dma.streams": self.dma.streams.value,
            "dma.read_bytes_per_cycle": self.dma.read_bytes_per_cycle.value,
            "dma.write_bytes_per_cycle": self.dma.write_bytes_per_cycle.value,
            "lx.read_bytes_per_cycle": self.lx.read_bytes_per_cycle.value,
            "lx.write_bytes_per_cycle": self.lx.write_bytes_per_cycle.value,
            "lx.strided_elements_per_cycle": self.lx.strided_elements_per_cycle.value,
            "lx.bank_bytes_per_cycle": self.lx.bank_bytes_per_cycle.value,
            "pt.step_cycles": self.pt.step_cycles.value,
            "pt.rows": self.pt.rows.value,
            "pt.columns": self.pt.columns.value,
            "pt.macs_per_element": self.pt.macs_per_element.value,
            "pt.full_rows": self.pt.full_rows.value,
            "pt.rate_8bit": self.pt.rate_8bit.value,
            "pt.rate_4bit": self.pt.rate_4bit.value,
            "queue.depth": self.queue.depth.value,
            "ring.bytes_per_cycle": self.ring.bytes_per_cycle.value,
            "launch.table_bytes_per_s": self.launch.table_bytes_per_s.value,
            "pcie.bytes_per_s": self.pcie.bytes_per_s.value,
            "pcie.packet_payload_bytes": self.pcie.packet_payload_bytes.value,
            "card.bytes_per_s": self.card.bytes_per_s.value,
            "card.packet_payload_bytes": self.card.packet_payload_bytes.value,
        }
        checks += [(v > 0, f"{k} must be above 0") for k, v in positive.items()]
        for ok, message in checks:
            if not ok:
                raise ValueError(message)
        return self

    @property
    def cores(self) -> int:
        return self.core.count.value

    @property
    def corelets(self) -> int:
        return self.core.corelets.value

    @property
    def lx_bytes(self) -> int:
        """LX of one core in bytes (the silicon's size)."""
        return self.lx.bytes.value

    @property
    def lx_plan_bytes(self) -> int:
        """LX of one core that a planner may use, in bytes (whole sticks)."""
        free = int(self.lx_bytes * (1 - self.lx.reserved_fraction.value))
        return free - free % self.stick_bytes

    @property
    def stick_bytes(self) -> int:
        return self.lx.stick_bytes.value

    @property
    def clock_hz(self) -> float:
        return self.clock.frequency_hz.value

    def lanes(self, bits: int = 16) -> int:
        """SFU lanes for elements of ``bits`` bits (one vector is one stick wide)."""
        if bits not in (8, 16, 32, 64):
            raise ArchError(f"no vector of {bits}-bit elements: bits must be 8, 16, 32 or 64")
        return self.stick_bytes * 8 // bits

    @property
    def macs_per_cycle(self) -> int:
        """16-bit multiply-accumulates per cycle of one corelet's PT."""
        return self.pt.rows.value * self.pt.columns.value * self.pt.macs_per_element.value

    @property
    def peak_flops(self) -> float:
        """16-bit matmul peak of the chip in FLOP/s."""
        return 2.0 * self.macs_per_cycle * self.corelets * self.cores * self.clock_hz

    def matmul_flops(self, rows: float = math.inf) -> float:
        """16-bit matmul rate of the chip in FLOP/s with ``rows`` rows of the left operand per core, long in the
        other dims: the array's steps, passes and reloads as the clock counts them."""
        pt = self.pt
        kept = min(rows, pt.full_rows.value)
        together = max(1.0, pt.rows.value / kept)
        steps = pt.fill_cycles.value + pt.step_cycles.value * max(kept, pt.rows.value)
        block = pt.reload_cycles.value + steps / together
        return self.peak_flops * kept / block

    @property
    def ddr_bytes_per_s(self) -> float:
        """Rate of long streams in one direction: the peak less check words, refresh, page openings, requests."""
        d = self.ddr
        words = d.peak_bytes_per_s.value * (1 - d.ecc_bytes.value / d.bytes.value)
        words *= 1 - d.refresh_ns.value / d.refresh_interval_ns.value
        pages = d.page_open_ns.value * 1e-9 / d.channels.value / d.page_bytes.value
        return 1 / (1 / words + pages + d.request_overhead_ns.value * 1e-9 / d.request_max_bytes.value)

    def draw_bytes_per_s(self, cores: int) -> float:
        """Rate that so many neighbouring cores can draw from DDR: each has a window of requests in flight, and each
        share of the ring one port to the memory."""
        ports = math.ceil(cores * self.ddr.ports.value / self.cores)
        port = self.ddr.port_bytes_per_cycle.value * self.clock_hz
        latency = self.ddr.latency_ns.value * 1e-9
        own = cores * self.dma.window_bytes.value / latency if latency else math.inf
        return min(self.ddr_bytes_per_s, own, ports * port)

    def ddr_seconds(self, read: float, write: float, cores: int | None = None) -> float:
        """Least time in which DDR reads and writes so many bytes, turnaround included; for so many of the cores, or
        all."""
        turn = 2e-9 * self.ddr.turnaround_ns.value / self.ddr.turnaround_group_bytes.value
        least = (read + write) / self.ddr_bytes_per_s + turn * min(read, write)
        return max(least, (read + write) / self.draw_bytes_per_s(cores or self.cores))

    def profile(self) -> Profile:
        """What a program compiled for this chip demands of the chip it runs on."""
        return Profile(self.name, self.cores, self.corelets, self.lx_bytes, self.stick_bytes)

    def params(self) -> dict[str, Param[Any]]:
        """Every parameter by its dotted name, in file order."""
        found = {}
        for group in type(self).model_fields:
            value = getattr(self, group)
            if isinstance(value, _Frozen):
                for field in type(value).model_fields:
                    found[f"{group}.{field}"] = getattr(value, field)
        return found

    def clock_params(self) -> dict[str, float]:
        """The flat table of numbers the clock reads."""
        return {name: float(param.value) for name, param in self.params().items()}


def presets() -> list[str]:
    """Names of the chips that ship with the package."""
    folder = resources.files("torch_loom.arch")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load(chip: str | Path) -> Chip:
    """Load a preset by name or a chip file by path. Raises ``ArchError``."""
    data, label = _read(str(chip), base=None, seen=())
    try:
        return Chip.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ArchError(f"{label}: {where + ': ' if where else ''}{message}") from None


def _read(chip: str, base: Path | None, seen: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """The merged table of a file and of what it extends, and the name to show in errors."""
    if chip in seen:
        raise ArchError(f"{chip}: extends itself ({' -> '.join([*seen, chip])})")
    if chip in presets():
        label, text = chip, (resources.files("torch_loom.arch") / f"{chip}.toml").read_text("utf-8")
        here = None
    else:
        path = Path(chip) if base is None else base / chip
        if not os.path.isfile(path):  # unlike Path.is_file, no error for a name that is too long
            raise ArchError(f"{chip}: neither a preset ({', '.join(presets())}) nor a file")
        label, here = str(path), path.parent
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArchError(f"{label}: cannot be read ({error})") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArchError(f"{label}: not valid TOML ({error})") from None
    parent = data.pop("extends", None)
    if parent is None:
        return data, label
    if not isinstance(parent, str):
        raise ArchError(f"{label}: extends must be the name or path of a chip file")
    merged, _ = _read(parent, here, (*seen, chip))
    return _override(merged, data, label), label


def _override(base: dict[str, Any], data: dict[str, Any], label: str) -> dict[str, Any]:
    """``base`` with the parameters of ``data``; a bare number there becomes an assumed parameter."""
    merged = dict(base)
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            group = dict(base[key])
            for name, entry in value.items():
                if isinstance(entry, int | float) and not isinstance(entry, bool):
                    entry = {"value": entry, "basis": "assumed", "source": f"set in {Path(label).name}"}
                group[name] = entry
            merged[key] = group
        else:
            merged[key] = value
    return merged
