"""Transfers: clips, zero fill, byte masks, gathers, scatters, lane splits, and the checks before them."""

import dataclasses

import numpy as np
import pytest
from chip_run import machine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from spyrecode_samples import buffer, dim, ex, gather_rows, lx, nums, one_shot

from torch_loom import _chip
from torch_loom.spyrecode import encode
from torch_loom.spyrecode.model import (
    Access,
    Block,
    Dma,
    Elem,
    Gather,
    LaneSplit,
    Program,
    Scope,
    SegLoad,
    SegStore,
    SegVec,
    Slot,
    Unit,
    VecOut,
    imm,
    slot,
)

rng = np.random.default_rng(0)


def through(load: Dma, store: Dma, sizes: tuple[int, int, int], *, index: bool = False) -> Program:
    """DDR -> LX block 0 -> (bytes as they are) -> LX block 1 -> DDR. ``sizes``: LX bytes, then the arguments.

    With ``index``, argument 2 (i32) is loaded first into block 2, which is 512 bytes."""
    bytes_lx = sizes[0]
    blocks = [Block("a", 0, bytes_lx), Block("b", bytes_lx, bytes_lx)]
    args = [buffer("x", Elem.U8), buffer("y", Elem.U8, Access.BOTH)]
    loads = [load]
    if index:
        blocks.append(Block("index", 2 * bytes_lx, 512))
        args.append(buffer("index", Elem.I32))
        loads.insert(0, Dma(2, slot(2), lx(2), (dim(4, 128, 128),)))
    parts = {
        Unit.L1LU: [SegLoad(0, 0, lx(0, 0), Elem.U8, nums(1))],
        Unit.SFU: [SegVec(0, nums(bytes_lx), (0,), (), (VecOut(0, 1),))],
        Unit.L1SU: [SegStore(0, 1, lx(1, 1), Elem.U8, nums(1))],
    }
    return one_shot(loads, parts, [store], args, blocks)


def noise(size: int) -> np.ndarray:
    return rng.integers(0, 256, size).astype(np.uint8)


def whole(arg: int, block: int, sticks: int) -> Dma:
    return Dma(arg, slot(arg), lx(block, block), (dim(sticks, 128, 128),))


def test_clip_and_zero_fill():
    load = Dma(
        *(0, slot(0), lx(0, 0)),
        (dim(4, 512, 256, clip=(1, 3)), dim(2, 128, 128, clip=(-5, 1))),
        zero_fill=True,
    )
    x = noise(2048)
    got = run(through(load, whole(1, 1, 8), (1024, 2048, 1024)), [x, np.zeros(1024, np.uint8)])[1]
    expected = np.zeros((4, 2, 128), np.uint8)
    expected[1:3, 0] = x.reshape(4, 4, 128)[1:3, 0]
    np.testing.assert_array_equal(got, expected.ravel())


def test_without_zero_fill_clipped_points_keep_lx():
    first = whole(0, 0, 8)
    second = Dma(0, slot(0), lx(0, 0), (dim(8, -128, 128, clip=(0, 1)),))
    program = through(first, whole(1, 1, 8), (1024, 1024, 1024))
    mnilu = program.streams[Unit.MNILU]
    streams = {**program.streams, Unit.MNILU: (mnilu[0], first, second, mnilu[-1])}
    x = noise(1024)
    got = run(dataclasses.replace(program, streams=streams), [x, np.zeros(1024, np.uint8)])[1]
    np.testing.assert_array_equal(got, x)


@given(st.integers(0, 520), st.integers(0, 520), st.sampled_from([128, 384]))
@settings(max_examples=40, deadline=None)
def test_byte_masks_leave_other_bytes_alone(low, high, pitch):
    """Two rows of four sticks, in DDR ``pitch`` bytes from stick to stick."""
    store = Dma(
        *(1, slot(1), lx(1, 1)),
        (dim(2, 4 * pitch, 512), dim(4, pitch, 128)),
        byte_lo=imm(low),
        byte_hi=imm(high),
    )
    x, y = noise(1024), noise(8 * pitch)
    got = run(through(whole(0, 0, 8), store, (1024, 1024, 8 * pitch)), [x, y])[1]
    expected = y.copy().reshape(2, 4, pitch)
    mask = (np.arange(512) >= low) & (np.arange(512) < high)
    rows = expected[:, :, :128].reshape(2, 512)
    expected[:, :, :128] = np.where(mask, x.reshape(2, 512), rows).reshape(2, 4, 128)
    np.testing.assert_array_equal(got, expected.ravel())


def test_a_masked_tail_may_end_at_the_allocation_in_the_middle_of_a_row():
    """The last stick of the row lies beyond the allocation; the mask excludes it."""
    store = Dma(1, slot(1), lx(1, 1), (dim(4, 128, 128),), byte_hi=imm(256))
    got = run(through(whole(0, 0, 4), store, (512, 512, 256)), [x := noise(512), np.zeros(256, np.uint8)])[1]
    np.testing.assert_array_equal(got, x[:256])


def test_gathered_rows():
    index = rng.integers(0, 100, 32).astype(np.int32)
    table = rng.integers(0, 65536, (100, 128)).astype(np.uint16) & 0x3FFF
    got = run(gather_rows(32, 2, 100), [index, table, np.zeros((32, 128), np.uint16)])[2]
    np.testing.assert_array_equal(got, table[index])


@pytest.mark.parametrize("bad", [100, -1, 2**31 - 1])
def test_an_index_out_of_range_is_named(bad):
    index = np.array([3, 7, bad, 1], np.int32)
    arrays = [np.resize(index, 32), np.zeros((100, 128), np.uint16), np.zeros((32, 128), np.uint16)]
    with pytest.raises(_chip.ChipError, match=f"index {bad} read from LX block idx is outside 0..99"):
        run(gather_rows(32, 2, 100), arrays)


def test_two_gathers_select_elements():
    """out[i] = x[row[i], column[i]] for bytes, with both index lists in one block."""
    row, column = rng.integers(0, 16, 60), rng.integers(0, 64, 60)
    index = np.zeros((2, 64), np.int32)
    index[0, :60], index[1, :60] = row, column
    load = Dma(
        *(0, slot(0), lx(0, 0), (dim(60, 0, 1),)),
        leaf=1,
        gathers=(
            Gather(lx(2), nums(4), imm(64), imm(16)),
            Gather(lx(2, -1, 256), nums(4), imm(1), imm(64)),
        ),
    )
    x = noise(1024)
    got = run(through(load, whole(1, 1, 1), (128, 1024, 128), index=True), [x, np.zeros(128, np.uint8), index])[1]
    np.testing.assert_array_equal(got[:60], x.reshape(16, 64)[row, column])


def test_scatter_writes_in_ascending_order_last_wins():
    index = np.zeros(128, np.int32)
    index[:8] = [5, 2, 5, 0, 7, 2, 5, 1]
    store = Dma(
        *(1, slot(1), lx(1, 1), (dim(8, 0, 128),)),
        gathers=(Gather(lx(2), nums(4), imm(128), imm(8)),),
    )
    x, y = noise(1024), noise(1024)
    got = run(through(whole(0, 0, 8), store, (1024, 1024, 1024), index=True), [x, y, index])[1]
    expected = y.reshape(8, 128).copy()
    for i, to in enumerate(index[:8]):
        expected[to] = x.reshape(8, 128)[i]
    np.testing.assert_array_equal(got.reshape(8, 128), expected)


@pytest.mark.parametrize("start", [0, 3, 61, 100])
def test_lane_split_walks_across_sticks(start):
    """A row of 2-byte elements cut into sticks of 64 that lie 1024 bytes apart, from any element on."""
    count = 150
    lanes = LaneSplit(imm(start), nums(1), 64, imm(1024))
    load = Dma(0, slot(0), lx(0, 0), (dim(count, 0, 2),), leaf=2, lanes=lanes)
    x = noise(4096)
    got = run(through(load, whole(1, 1, 3), (384, 4096, 384)), [x, np.zeros(384, np.uint8)])[1]
    row = x.reshape(4, 1024)[:, :128].copy().view(np.uint16).ravel()
    np.testing.assert_array_equal(got.view(np.uint16)[:count], row[start : start + count])


def test_lane_split_with_gathered_lanes_and_negative_coordinates():
    index = np.zeros(128, np.int32)
    index[:6] = [70, 0, 63, 64, 127, 5]
    lanes = LaneSplit(imm(-64), nums(0), 64, imm(256))
    load = Dma(
        *(0, slot(3), lx(0, 0), (dim(6, 0, 2),)),
        leaf=2,
        lanes=lanes,
        gathers=(Gather(lx(2), nums(4), imm(0), imm(128), lane=True),),
    )
    program = through(load, whole(1, 1, 1), (128, 512, 128), index=True)
    # Lane -64 of the row is the stick before the base, so the base is one stick row into the buffer.
    program = dataclasses.replace(program, slots=(*program.slots, Slot(ex("s0", 256, "+"), Scope.LAUNCH)))
    x = noise(512)
    got = run(program, [x, np.zeros(128, np.uint8), index])[1]
    row = x.reshape(2, 256)[:, :128].copy().view(np.uint16).ravel()
    np.testing.assert_array_equal(got.view(np.uint16)[:6], row[index[:6]])


@st.composite
def boxes(draw):
    rank = draw(st.integers(1, 3))
    dims, clip = [], []
    for _ in range(rank):
        extent = draw(st.integers(1, 5))
        dims.append((extent, 128 * draw(st.integers(-6, 6)), 128 * draw(st.integers(0, 5))))
        clip.append((draw(st.integers(-1, 3)), draw(st.integers(0, 6))))
    return dims, clip, 128 * draw(st.integers(-4, 40)), 128 * draw(st.integers(0, 8))


@given(boxes())
@settings(max_examples=150, deadline=None)
def test_any_box_moves_its_points_or_is_refused_whole(box):
    """Against a point-by-point walk. A transfer that leaves its memories raises and writes nothing."""
    dims, clip, start, offset = box
    size, lx_size = 4096, 2048
    load = Dma(
        *(0, slot(0), lx(0, 0, offset)),
        tuple(dim(e, d, n, c) for (e, d, n), c in zip(dims, clip, strict=True)),
    )
    program = through(load, whole(1, 1, 16), (lx_size, size, lx_size))
    chip = machine(program)
    chip.lx(0)[:] = 0x11
    chip.ddr[: 1 << 16] = 0
    x = noise(size)
    base = 8192
    chip.ddr[base : base + size] = x
    expected = np.full(lx_size, 0x11, np.uint8)
    inside = True
    for point in np.ndindex(*(e for e, _, _ in dims)):
        if any(not lo <= i < hi for i, (lo, hi) in zip(point, clip, strict=True)):
            continue
        far = start + sum(i * d for i, (_, d, _) in zip(point, dims, strict=True))
        near = offset + sum(i * n for i, (_, _, n) in zip(point, dims, strict=True))
        inside = inside and far >= 0 and far + 128 <= size and near + 128 <= lx_size
        if inside:
            expected[near : near + 128] = x[far : far + 128]
    slots = (Slot(ex("s0", start, "+"), Scope.LAUNCH), *program.slots[1:])
    program = dataclasses.replace(program, slots=slots)
    args = [(base, size), (65536, lx_size)]
    loaded = _chip.decode(encode(program))
    if inside:
        chip.run(loaded, args)
        np.testing.assert_array_equal(chip.ddr[65536 : 65536 + lx_size], expected)
    else:
        with pytest.raises(_chip.ChipError) as error:
            chip.run(loaded, args)
        assert error.value.code in ("DEV-01", "DEV-02")
        assert (chip.lx(0)[:lx_size] == 0x11).all()


def test_lx_bounds_name_the_block():
    load = Dma(0, slot(0), lx(0, 0, 128), (dim(8, 128, 128),))
    with pytest.raises(_chip.ChipError, match=r"bytes 128..1152 of block a, which has 1024") as error:
        run(through(load, whole(1, 1, 8), (1024, 1024, 1024)), [noise(1024), noise(1024)])
    assert error.value.code == "DEV-02"


def test_ddr_bounds_name_the_argument():
    load = Dma(0, slot(0), lx(0, 0), (dim(9, 128, 0),))
    with pytest.raises(_chip.ChipError, match=r"MNILU: DDR access to bytes 0..1152 of argument x") as error:
        run(through(load, whole(1, 1, 8), (1024, 1024, 1024)), [noise(1024), noise(1024)])
    assert error.value.code == "DEV-01"


def test_huge_extents_and_strides_are_refused():
    for extent, stride in ((1 << 62, 1 << 62), (1 << 40, 0), (3, -(1 << 62))):
        load = Dma(0, slot(0), lx(0, 0), (dim(extent, stride, 128),))
        with pytest.raises(_chip.ChipError) as error:
            run(through(load, whole(1, 1, 8), (1024, 1024, 1024)), [noise(1024), noise(1024)])
        assert error.value.code in ("DEV-01", "DEV-02", "DEV-06")
