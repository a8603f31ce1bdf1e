"""Buffers that programs keep in LX between them: values, refusals, and what the clock charges for them."""

import numpy as np
import pytest
import torch  # noqa: F401  (the native module finds its libraries through it)

from torch_loom import _chip, arch, ktir, scheduler
from torch_loom.ktir.builder import KernelBuilder

CHIP = arch.load("spyre")
CORES, LX = CHIP.cores, CHIP.lx.bytes.value
ROWS, COLUMNS = 256, 64
BYTES = ROWS * COLUMNS * 4


def doubled(reverse=False, cores=CORES, rows=ROWS):
    """y = x + x; each core does a run of rows, of x the runs from the last one on if ``reverse``."""
    b = KernelBuilder("doubled", cores)
    x, y = (b.view(b.buffer(n), [rows, COLUMNS], [COLUMNS, 1], "f32") for n in "xy")
    part = rows // cores
    at = b.mul(b.tile_id(), part)
    value = b.load(x, [b.sub(rows - part, at) if reverse else at, 0], [part, COLUMNS])
    b.store(b.op("arith.addf", value, value), y, [at, 0], [part, COLUMNS])
    return _chip.decode(scheduler.compile(ktir.load(b.text()), "doubled", CHIP).binary)


def kept(at=None, cores=CORES, size=BYTES):
    """A place at the end of LX (or ``at``)."""
    share = -(-size // (cores * 128)) * 128
    return (LX - share if at is None else at, size, share)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("holders", [32, 31, 5])
def test_a_value_kept_in_lx_reaches_the_next_program(reverse, holders):
    m = _chip.Machine(CORES, LX, 2, 1 << 24)
    x = np.random.default_rng(0).random((ROWS, COLUMNS), dtype=np.float32)
    m.ddr[:BYTES] = x.view(np.uint8).ravel()
    place = kept(cores=holders)
    m.run(doubled(), [(0, BYTES), place])
    m.run(doubled(reverse), [place, (1 << 20, BYTES)])
    found = m.ddr[1 << 20 : (1 << 20) + BYTES].copy().view(np.float32).reshape(ROWS, COLUMNS)
    blocks = (4 * x).reshape(CORES, -1, COLUMNS)
    assert (found == (blocks[::-1] if reverse else blocks).reshape(ROWS, COLUMNS)).all()
    held = np.concatenate([m.lx(c)[place[0] : place[0] + place[2]] for c in range(CORES)])[:BYTES]
    assert (held.view(np.float32).reshape(ROWS, COLUMNS) == 2 * x).all()


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ((0, BYTES, BYTES // 32), "the program itself uses 0"),
        ((LX - 1024, BYTES, BYTES // 64), "do not hold"),
        ((LX - 1024, BYTES, BYTES // 32), "but a core has"),
        ((LX - 4096 + 64, BYTES, BYTES // 32), "no whole sticks"),
    ],
)
def test_impossible_places_are_refused(place, reason):
    m = _chip.Machine(CORES, LX, 1, 1 << 24)
    for call in (
        lambda: m.run(doubled(), [(0, BYTES), place]),
        lambda: _chip.time(doubled(), [(0, BYTES), place], CHIP.clock_params()),
    ):
        with pytest.raises(_chip.ChipError, match=reason) as error:
            call()
        assert error.value.code == "DEV-11"


def test_two_buffers_of_a_launch_may_not_overlap():
    m = _chip.Machine(CORES, LX, 1, 1 << 24)
    at, size, share = kept()
    with pytest.raises(_chip.ChipError, match="where argument x lies"):
        m.run(doubled(), [(at, size, share), (at - 128, size, share)])


def test_reads_beyond_a_kept_buffer_are_refused():
    m = _chip.Machine(CORES, LX, 1, 1 << 24)
    with pytest.raises(_chip.ChipError, match="DEV-01"):
        m.run(doubled(), [kept(size=BYTES // 2), (0, BYTES)])


def test_the_clock_charges_no_ddr_for_kept_buffers():
    params = CHIP.clock_params()
    ddr = _chip.time(doubled(), [(0, BYTES), (BYTES, BYTES)], params)
    near = _chip.time(doubled(), [kept(), (0, BYTES)], params)
    both = _chip.time(doubled(), [kept(), kept(LX - 8192)], params)
    assert near.link_bytes["DDR read"] == 0 and near.link_bytes["DDR write"] == BYTES
    assert near.between_bytes == {"DDR read": 0, "DDR write": 0, "LX read": BYTES, "LX write": 0}
    assert both.between_bytes == {"DDR read": 0, "DDR write": 0, "LX read": BYTES, "LX write": BYTES}
    assert both.link_bytes["DDR write"] == both.link_bytes["ring"] == 0
    assert both.ns < near.ns < ddr.ns
    pool = _chip.time(doubled(), [(0, BYTES, 0), (BYTES, BYTES)], params)
    assert pool.between_bytes["DDR read"] == BYTES and pool.ns == ddr.ns


def test_what_another_core_holds_comes_over_the_ring():
    params = CHIP.clock_params()
    home = _chip.time(doubled(), [kept(), kept(LX - 8192)], params)
    away = _chip.time(doubled(reverse=True), [kept(), kept(LX - 8192)], params)
    # Core c reads what core 31 - c holds: |31 - 2c| links one way round or the other, BYTES / 32 over each.
    links = sum(min(abs(31 - 2 * c), 32 - abs(31 - 2 * c)) for c in range(32))
    assert home.link_bytes["ring"] == 0 and away.link_bytes["ring"] == links * BYTES // 32
    assert away.ns > home.ns


def test_a_load_that_all_cores_share_is_read_from_lx_once():
    b = KernelBuilder("shared", CORES)
    x, y = (b.view(b.buffer(n), [rows, COLUMNS], [COLUMNS, 1], "f32") for n, rows in (("x", 8), ("y", ROWS)))
    whole = b.load(x, [0, 0], [8, COLUMNS])
    b.store(b.op("arith.addf", whole, whole), y, [b.mul(b.tile_id(), 8), 0], [8, COLUMNS])
    program = _chip.decode(scheduler.compile(ktir.load(b.text()), "shared", CHIP).binary)
    size = 8 * COLUMNS * 4
    timing = _chip.time(program, [kept(cores=1, size=size), (0, BYTES)], CHIP.clock_params())
    assert timing.between_bytes["LX read"] == size
    assert timing.link_bytes["ring"] == 31 * size  # once round: every core but the holder is passed once
