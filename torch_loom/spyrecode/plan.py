"""The public job plan (spyrecode.json): typed commands, validation, both published spellings.

Numbers are decimal strings, booleans the strings "true" and "false", as the public runtime has them.
Loading applies every rule of the table SC-E01..E10 in docs/spyrecode.md; a message names the file,
the entry, the property, the value and what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_loom.spyrecode.errors import SpyreCodeError

PROGRAM_BASE = 7 * (16 << 30)  # segment 7
PROGRAM_LIMIT = PROGRAM_BASE + (16 << 30)
ALIGN = 128
HCM_FORMAT = "torch-loom value table 1"


@dataclass(frozen=True)
class Allocate:
    size: int


@dataclass(frozen=True)
class InitTransfer:
    init_bin_file: str
    dev_ptr: int
    size: int


@dataclass(frozen=True)
class ComputeOnHost:
    ihandle: str
    ishape: tuple[int, ...]
    ohandle: str
    size: int
    hcm: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataTransfer:
    to_host: bool
    host_handle: str
    dev_ptr: int
    size: int


@dataclass(frozen=True)
class ComputeOnDevice:
    job_bin_ptr: int
    name: str = ""


Command = Allocate | InitTransfer | ComputeOnHost | DataTransfer | ComputeOnDevice


@dataclass(frozen=True)
class Plan:
    preparation: tuple[Command, ...]
    execution: tuple[Command, ...]

    @property
    def base(self) -> int:
        """Address where the one program allocation is assumed to start (the segment's base)."""
        return PROGRAM_BASE

    @property
    def image_file(self) -> str:
        """Name of the first image."""
        return next(c.init_bin_file for c in self.preparation if isinstance(c, InitTransfer))

    def to_json(self) -> str:
        """The running spelling."""
        top = {
            "JobPreparationPlan": [_dump(c) for c in self.preparation],
            "JobExecPlan": [_dump(c) for c in self.execution],
        }
        return json.dumps(top, indent=1) + "\n"


def up(size: int) -> int:
    """``size`` rounded up to the allocation unit."""
    return -(-size // ALIGN) * ALIGN


def for_image(name: str, image_bytes: int, table_bytes: int, args: int, image_file: str) -> Plan:
    """The plan of one of our programs: table area, then the image; correction, transfer, compute."""
    table, image = up(table_bytes), up(image_bytes)
    entry = PROGRAM_BASE + table
    execution: list[Command] = []
    if table:
        hcm = {"vdci": {"format": HCM_FORMAT, "table_bytes": str(table_bytes)}, "senConstants": []}
        execution += [
            ComputeOnHost("", (args,), "values", table, hcm),
            DataTransfer(False, "values", PROGRAM_BASE, table),
        ]
    return Plan(
        (Allocate(table + image), InitTransfer(image_file, entry, image_bytes)),
        (*execution, ComputeOnDevice(entry, name)),
    )


def _dump(command: Command) -> dict[str, Any]:
    match command:
        case Allocate(size):
            props: dict[str, Any] = {"size": str(size)}
        case InitTransfer(file, ptr, size):
            props = {"init_bin_file": file, "dev_ptr": str(ptr), "size": str(size)}
        case ComputeOnHost(ihandle, ishape, ohandle, size, hcm):
            shape = [str(n) for n in ishape]
            props = {
                "ihandle": ihandle,
                "ishape": shape,
                "ohandle": ohandle,
                "size": str(size),
                "hcm": dict(hcm),
            }
        case DataTransfer(to_host, handle, ptr, size):
            dirn = "true" if to_host else "false"
            props = {"dirn": dirn, "host_handle": handle, "dev_ptr": str(ptr), "size": str(size)}
        case ComputeOnDevice(ptr, name):
            props = {"job_bin_ptr": str(ptr)}
            if name:
                props["name"] = name
    return {"command": type(command).__name__, "properties": props}


class _Entry:
    """One command of the file: typed access to its properties, errors that name the place."""

    def __init__(self, where: str, properties: Any) -> None:
        self.where = where
        if not isinstance(properties, dict):
            raise SpyreCodeError("SC-E02", f"{where}: properties must be an object")
        self.properties = properties

    def get(self, *names: str) -> Any:
        """The property under the first of its spellings that is present."""
        for name in names:
            if name in self.properties:
                return self.properties[name]
        raise SpyreCodeError("SC-E02", f"{self.where}: property {names[0]} is missing")

    def text(self, *names: str) -> str:
        value = self.get(*names)
        if not isinstance(value, str):
            raise SpyreCodeError("SC-E03", f"{self.where}: {names[0]} is {value!r}, a string is expected")
        return value

    def number(self, *names: str) -> int:
        return decimal(self.get(*names), f"{self.where}: {names[0]}", "SC-E03")

    def direction(self) -> bool:
        value = self.get("dirn", "direction")
        known = {"false": False, "true": True, "0": False, "1": True}
        if not isinstance(value, str) or value not in known:
            raise SpyreCodeError("SC-E03", f'{self.where}: dirn is {value!r}, "false" or "true" is expected')
        return known[value]

    def shape(self) -> tuple[int, ...]:
        value = self.get("ishape", "iargs")
        if not isinstance(value, list):
            raise SpyreCodeError("SC-E10", f"{self.where}: ishape is {value!r}, a list is expected")
        shape = tuple(decimal(v, f"{self.where}: ishape", "SC-E10") for v in value)
        if 0 in shape and len(shape) > 1:
            raise SpyreCodeError("SC-E10", f'{self.where}: ishape {value} mixes "0" with other entries')
        return shape


def decimal(value: Any, where: str, code: str) -> int:
    """A non-negative decimal string without sign or leading zeros."""
    ok = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20
    if not ok or (len(value) > 1 and value[0] == "0"):
        raise SpyreCodeError(code, f"{where} is {value!r}, a decimal string is expected")
    return int(value)


def _parse(where: str, command: str, e: _Entry) -> Command:
    match command:
        case "Allocate":
            return Allocate(e.number("size"))
        case "InitTransfer":
            return InitTransfer(e.text("init_bin_file", "file_path"), e.number("dev_ptr"), e.number("size"))
        case "ComputeOnHost":
            hcm = e.get("hcm")
            if not isinstance(hcm, dict):
                raise SpyreCodeError("SC-E02", f"{where}: hcm must be an object")
            if _depth(hcm) > _HCM_DEPTH:
                raise SpyreCodeError("SC-E02", f"{where}: hcm is nested deeper than {_HCM_DEPTH} levels")
            ihandle = e.text("ihandle") if "ihandle" in e.properties else ""
            ohandle = e.text("ohandle", "oshape")
            return ComputeOnHost(ihandle, e.shape(), ohandle, e.number("size"), hcm)
        case "DataTransfer":
            return DataTransfer(e.direction(), e.text("host_handle"), e.number("dev_ptr"), e.number("size"))
        case "ComputeOnDevice":
            name = e.text("name") if "name" in e.properties else ""
            return ComputeOnDevice(e.number("job_bin_ptr"), name)
    raise AssertionError(command)


_PREPARATION = (Allocate, InitTransfer)
_EXECUTION = (ComputeOnHost, DataTransfer, ComputeOnDevice)
_COMMANDS = {c.__name__ for c in (*_PREPARATION, *_EXECUTION)}
_HCM_DEPTH = 32  # levels of objects and arrays; printing a plan recurses


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _depth(value: Any) -> int:
    """Levels of containers, counted without recursion."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        depth += 1
        level = [child for v in level for child in (v.values() if isinstance(v, dict) else v)]
    return depth


def load(path: str | Path) -> Plan:
    """Read and check a plan file; images are looked up beside it. Raises SC-E01..E10."""
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpyreCodeError("SC-E01", f"{path}: cannot be read ({error})") from None
    return loads(text, str(path), path.parent)


def loads(text: str, label: str = "plan", folder: Path | None = None) -> Plan:
    """Check plan text. With ``folder``, image files must exist there and be long enough."""
    try:
        top = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # a ValueError for numbers of thousands of digits, too
        raise SpyreCodeError("SC-E01", f"{label}: not valid JSON ({error})") from None
    lists: list[tuple[Command, ...]] = []
    for key, allowed, least in (
        ("JobPreparationPlan", _PREPARATION, 2),
        ("JobExecPlan", _EXECUTION, 1),
    ):
        entries = top.get(key) if isinstance(top, dict) else None
        if not isinstance(entries, list):
            raise SpyreCodeError("SC-E01", f"{label}: array {key} is missing")
        if len(entries) < least:
            raise SpyreCodeError("SC-E01", f"{label}: {key} has {len(entries)} entries, not {least} or more")
        found = []
        for i, entry in enumerate(entries):
            where = f"{label}: {key}[{i}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("command"), str):
                raise SpyreCodeError("SC-E02", f"{where}: an object with a command is expected")
            if entry["command"] not in _COMMANDS:
                raise SpyreCodeError("SC-E02", f"{where}: unknown command {entry['command']!r}")
            where += f" {entry['command']}"
            command = _parse(where, entry["command"], _Entry(where, entry.get("properties")))
            if not isinstance(command, allowed):
                raise SpyreCodeError("SC-E02", f"{where}: not allowed in {key}")
            found.append(command)
        lists.append(tuple(found))
    plan = Plan(lists[0], lists[1])
    _check(plan, label, folder)
    return plan


def _check(plan: Plan, label: str, folder: Path | None) -> None:
    first, *rest = plan.preparation
    if not isinstance(first, Allocate) or any(isinstance(c, Allocate) for c in rest):
        raise SpyreCodeError("SC-E01", f"{label}: JobPreparationPlan must start with its only Allocate")
    size = first.size
    if not 0 < size <= PROGRAM_LIMIT - PROGRAM_BASE:
        raise SpyreCodeError("SC-E05", f"{label}: Allocate of {size} bytes does not fit segment 7")
    spans: list[tuple[int, int, str]] = []
    for i, command in enumerate(rest, 1):
        assert isinstance(command, InitTransfer)
        where = f"{label}: JobPreparationPlan[{i}] InitTransfer"
        _span(command.dev_ptr, command.size, size, f"{where}: dev_ptr")
        spans.append((command.dev_ptr, command.dev_ptr + command.size, where))
        if folder is not None:
            _check_file(folder, command, where)
    for (_, end, _), (start, _, where) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        if start < end:
            raise SpyreCodeError("SC-E06", f"{where}: overlaps another InitTransfer at {start}")
    _check_execution(plan, label, size, spans)


def _span(start: int, length: int, size: int, where: str) -> None:
    """A range must be aligned and lie in the allocation, which starts at the segment's base."""
    if start % ALIGN:
        raise SpyreCodeError("SC-E07", f"{where} = {start} is not a multiple of {ALIGN}")
    if not PROGRAM_BASE <= start < PROGRAM_LIMIT:
        raise SpyreCodeError("SC-E05", f"{where} = {start} is outside segment 7, {PROGRAM_BASE}..{PROGRAM_LIMIT}")
    if start + length > PROGRAM_BASE + size:
        raise SpyreCodeError(
            "SC-E05",
            f"{where}: {start} + {length} leaves the allocation, which ends at {PROGRAM_BASE + size}",
        )


_NAME_BYTES = 255  # of a file name, the limit of common file systems


def _check_file(folder: Path, command: InitTransfer, where: str) -> None:
    name = command.init_bin_file
    plain = name.isprintable() and "/" not in name and "\\" not in name and name not in ("", ".", "..")
    if not plain or len(name.encode()) > _NAME_BYTES:
        raise SpyreCodeError("SC-E04", f"{where}: init_bin_file {name!r} must be a file beside the plan")
    path = folder / name
    if not path.is_file():
        raise SpyreCodeError("SC-E04", f"{where}: image {path} does not exist")
    size = path.stat().st_size
    if size < command.size:
        raise SpyreCodeError("SC-E04", f"{where}: image {path} has {size} bytes, {command.size} expected")


def _check_execution(plan: Plan, label: str, size: int, spans: list[tuple[int, int, str]]) -> None:
    handles: dict[str, int] = {}
    for i, command in enumerate(plan.execution):
        where = f"{label}: JobExecPlan[{i}] {type(command).__name__}"
        if isinstance(command, ComputeOnHost):
            if command.ihandle and command.ihandle not in handles:
                raise SpyreCodeError("SC-E08", f"{where}: ihandle {command.ihandle!r} does not exist yet")
            _create(handles, command.ohandle, command.size, where)
        elif isinstance(command, DataTransfer):
            _span(command.dev_ptr, command.size, size, f"{where}: dev_ptr")
            if command.to_host:
                _create(handles, command.host_handle, command.size, where)
                continue
            handle = command.host_handle
            if handle not in handles:
                raise SpyreCodeError("SC-E08", f"{where}: host_handle {handle!r} does not exist yet")
            if command.size > handles[handle]:
                raise SpyreCodeError(
                    "SC-E10",
                    f"{where}: size {command.size} exceeds host buffer {handle!r} of {handles[handle]} bytes",
                )
            for start, end, other in spans:
                if command.dev_ptr < end and start < command.dev_ptr + command.size:
                    raise SpyreCodeError("SC-E06", f"{where}: the correction area overlaps {other}")
        elif isinstance(command, ComputeOnDevice):
            _span(command.job_bin_ptr, 1, size, f"{where}: job_bin_ptr")
    if isinstance(plan.execution[0], ComputeOnHost):
        rest = plan.execution[1:]
        ok = len(rest) >= 2 and isinstance(rest[0], DataTransfer) and not rest[0].to_host
        if not ok or not all(isinstance(c, ComputeOnDevice) for c in rest[1:]):
            raise SpyreCodeError(
                "SC-E09",
                f"{label}: JobExecPlan: ComputeOnHost must be followed by a host-to-device DataTransfer "
                "and then ComputeOnDevice only",
            )


def _create(handles: dict[str, int], name: str, size: int, where: str) -> None:
    if not name:
        raise SpyreCodeError("SC-E08", f"{where}: a host buffer needs a name")
    if handles.setdefault(name, size) != size:
        raise SpyreCodeError("SC-E08", f"{where}: host buffer {name!r} exists with {handles[name]} bytes")
