"""A clock with figures made by hand, so that reports and traces are checked against numbers known beforehand.

The program has two cores and one channel with two copies of a block of 256 bytes at LX address 128. Per core, in
cycles: MNILU fills copy 0 in 100..200 and copy 1 in 200..300, the SFU reads them in 210..260 and 310..360, MNILU fills
copy 0 again in 300..400 with the credit sent at 260; DDR is busy in 100..400.
"""

from types import SimpleNamespace

import numpy as np

from torch_loom import arch, spyrecode
from torch_loom.profiler import Subject
from torch_loom.spyrecode.model import Arg, ArgKind, Block, Channel, Program, Symbol, SymbolKind, Unit

CHIP = arch.load("spyre-mini")
CYCLES = 480.0
TRACKS = ["MNILU", "MNISU", "L1LU", "PT", "SFU", "L1SU", "DDR", "ring", "launch"]
NAMES = ["x", "segment 0", "c0", "DDR", "c0.full", "c0.empty"]


def program(name="kernel"):
    return Program(
        name=name,
        profile=CHIP.profile(),
        cores=2,
        args=(Arg("x", ArgKind.BUFFER), Arg("n", ArgKind.INT)),
        symbols=(Symbol("x", SymbolKind.ADDRESS, 0), Symbol("n", SymbolKind.DIM, 1)),
        slots=(),
        exprs=(),
        blocks=(Block("bx", 128, 256, 2), Block("scratch", 1024, 128)),
        channels=(Channel("c0", Unit.MNILU, Unit.L1LU, 2, (0,)),),
        streams=dict.fromkeys(Unit, ()),
    )


def subject(name="kernel", launches=1, reschedule=None):
    image = spyrecode.encode(program(name))
    return Subject(name, image, ((0, 1024), 7), launches, "model.py:3", reschedule)


def timing(params=None, **changed):
    """480 cycles = 320 ns at 1.5 GHz; every parameter that ``params`` makes zero saves 48 cycles."""
    own = CHIP.clock_params()
    cycles = CYCLES - 48 * sum(1 for name, value in (params or {}).items() if value == 0 and own[name] != 0)
    unit = {name: SimpleNamespace(busy_cycles=0.0, wait_cycles=0.0) for name in TRACKS[:7]}
    unit["SFU"] = SimpleNamespace(busy_cycles=0.25 * cycles * 8, wait_cycles=10.0)
    unit["DDR"] = SimpleNamespace(busy_cycles=0.625 * cycles, wait_cycles=0.0)
    figures = dict(
        cycles=cycles,
        ns=cycles / 1.5,
        launch_cycles=90.0,
        pt_util=0.0,
        sfu_util=0.25,
        ddr_read_bytes=1536,
        ddr_write_bytes=0,
        macs=0,
        events=40,
        bottleneck="DDR read",
        shares={"DDR read": 0.625, "SFU": 0.25, "launch": 0.1875, "wait": 0.0},
        link_bytes={"DDR read": 1536, "DDR write": 0, "LX read": 768, "LX write": 1536, "ring": 0},
        between_bytes={"DDR read": 256, "DDR write": 0, "LX read": 768, "LX write": 512},
        energy_pj={"PT": 0.0, "SFU": 100.0, "LX": 300.0, "DDR": 49152.0, "ring": 0.0, "idle": 6400.0},
        units=unit,
    )
    return SimpleNamespace(**(figures | changed))


def rows():
    """Spans (core, track, begin, end, what, kind) and credits (core, from, sent, to, seen, which)."""
    spans, flows = [(-1, 6, 100.0, 400.0, 3, 0)], []
    for core in (0, 1):
        spans += [(core, 0, a, a + 100.0, 0, 2) for a in (100.0, 200.0, 300.0)]
        spans += [(core, 4, 90.0, 210.0, 2, 1), (core, 4, 210.0, 260.0, 1, 0), (core, 4, 310.0, 360.0, 1, 0)]
        flows += [(core, 0, 200.0, 4, 210.0, 4), (core, 4, 260.0, 0, 270.0, 5), (core, 0, 300.0, 4, 310.0, 4)]
    return spans, flows


def trace(limit):
    spans, flows = rows()
    s, f = list(zip(*spans[:limit], strict=True)), list(zip(*flows[:limit], strict=True))
    return {
        "timing": timing(),
        "tracks": TRACKS,
        "names": NAMES,
        "core": np.asarray(s[0], np.int16),
        "track": np.asarray(s[1], np.uint8),
        "begin": np.asarray(s[2]),
        "end": np.asarray(s[3]),
        "what": np.asarray(s[4], np.int32),
        "kind": np.asarray(s[5], np.uint8),
        "flow_from_core": np.asarray(f[0], np.int16),
        "flow_from_track": np.asarray(f[1], np.uint8),
        "flow_sent": np.asarray(f[2]),
        "flow_to_core": np.asarray(f[0], np.int16),
        "flow_to_track": np.asarray(f[3], np.uint8),
        "flow_seen": np.asarray(f[4]),
        "flow_channel": np.asarray(f[5], np.int32),
        "truncated": len(spans) > limit,
    }


def native(calls=None):
    """In place of the native module; ``calls`` collects the parameters of every timing."""

    def time(handle, args, params):
        assert args == [(0, 1024), 7]
        if calls is not None:
            calls.append(params)
        return timing(params)

    return SimpleNamespace(
        decode=lambda image: image, time=time, trace=lambda handle, args, params, limit: trace(limit)
    )
