"""The division of contractions: what is counted, what is chosen, what the compiled kernel then does."""

import logging
import math
import re

import pytest
import torch
import torch.nn.functional as F
from helpers import DF16_HALF_STEP, half

from torch_loom import arch
from torch_loom.inductor import config
from torch_loom.inductor.division import LX_BUDGET, Contraction, divide, rows_pay, timed
from torch_loom.profiler import launch_rows, recorded_launches

CHIP = arch.load("spyre")
BUDGET = 1_600_000


def test_traffic_of_one_way_by_hand():
    # 256 x 512 = 256 x 128 times 128 x 512 on 4 x 2 cores, tiles 32 x 64: each core has 2 x 4 tiles.
    c = Contraction(1, 256, 512, 128)
    columns_first = timed(c, (1, 4, 2, 1), 32, 64, False, CHIP)
    assert columns_first.read == 2 * (256 * 128 * 4 + 128 * 512)  # A once per column tile, B once
    assert columns_first.written == 2 * 256 * 512
    rows_first = timed(c, (1, 4, 2, 1), 32, 64, True, CHIP)
    assert rows_first.read == 2 * (256 * 128 + 128 * 512 * 2)  # B once per row tile
    # Five tiles of rows for four cores: two each, of which the last core's lie behind the end.
    uneven = timed(Contraction(1, 160, 512, 128), (1, 4, 2, 1), 32, 64, True, CHIP)
    assert uneven.read == 2 * (256 * 128 + 128 * 512 * 2)
    # K over two cores: each reads its half of both operands.
    halves = timed(Contraction(1, 16, 512, 128, k_unit=64), (1, 1, 4, 2), 16, 64, True, CHIP)
    assert (halves.k_block, halves.steps, halves.read) == (64, 1, 2 * (16 * 128 + 128 * 512))


@pytest.mark.parametrize("m, n, k", [(1, 4096, 4096), (4096, 384, 1536), (128, 1536, 384), (65, 67, 63), (7, 1, 3)])
def test_the_choice_fits_lx_and_is_never_slower_than_the_plain_one(m, n, k):
    c = Contraction(1, m, n, k)
    chosen, plain = divide(c, 32, BUDGET, "spyre")[0], divide(c, 32, BUDGET, "spyre", False)[0]
    assert chosen.cycles <= plain.cycles * 1.02
    assert chosen.lx_bytes <= BUDGET and math.prod(chosen.grid) <= 32


@pytest.mark.parametrize("whole_rows", [False, True])
@pytest.mark.parametrize("batch, m, n, k", [(2, 21, 128, 160), (5, 21, 70, 384), (1, 100, 300, 64), (7, 1, 65, 128)])
def test_every_core_of_a_grid_has_tiles(batch, m, n, k, whole_rows):
    c = Contraction(batch, m, n, k, k_unit=0 if whole_rows else 64, whole_rows=whole_rows)
    for way in divide(c, 32, LX_BUDGET, "spyre"):
        tiles = (batch, -(-m // way.m_block), -(-n // way.n_block))
        for count, parts in zip(tiles, way.grid[:3], strict=True):
            per = -(-count // parts)
            assert (parts - 1) * per < count


def test_a_compiled_product_reads_each_operand_once():
    torch._dynamo.reset()
    a, w = half(512, 384), half(384, 256, seed=1, scale=0.1)
    x, y = a.to("spyre"), w.to("spyre")
    fn = torch.compile(lambda a, w: a @ w, dynamic=False)
    fn(x, y).cpu()
    with recorded_launches() as records:
        out = fn(x, y).cpu()
    (row,) = launch_rows(records, CHIP)
    assert row.ddr_bytes == 2 * (512 * 384 + 384 * 256 + 512 * 256)
    expected = x.cpu().float() @ y.cpu().float()
    torch.testing.assert_close(out.float(), expected, rtol=DF16_HALF_STEP * 1.01, atol=1e-4)


def test_rows_that_divide_unevenly_and_a_switch(caplog):
    a, w = half(130, 70), half(70, 100, seed=1)
    x, y = a.to("spyre"), w.to("spyre")
    expected = x.cpu().float() @ y.cpu().float()
    for searched in (True, False):
        torch._dynamo.reset()
        anew = torch._inductor.config.patch(force_disable_caches=True)
        with anew, config.patch(work_division=searched), caplog.at_level(logging.DEBUG, logger="torch_loom"):
            out = torch.compile(lambda a, w: a @ w, dynamic=False)(x, y).cpu()
        torch.testing.assert_close(out.float(), expected, rtol=DF16_HALF_STEP * 1.01, atol=1e-4)
    text = caplog.text
    assert "batch 1, m 130, n 100, k 70" in text and "chosen" in text and "DDR" in text


def test_a_product_of_one_row_uses_all_cores_rather_than_its_norm():
    """One core draws a ninth of the memory's rate: a norm in the epilogue would leave it the whole weight."""
    assert not rows_pay(1, 4096, 4096, 1, 32, LX_BUDGET, "spyre", False)
    assert rows_pay(4096, 384, 384, 1, 32, LX_BUDGET, "spyre", False)


def test_a_norm_that_reads_the_product_from_lx_leaves_the_product_its_best_division():
    """The clock: a layer of GPT-2 with hidden size 768 took 206 us with norms in the epilogues, 188 without."""
    assert rows_pay(512, 768, 768, 1, 32, LX_BUDGET, "spyre", False)
    assert not rows_pay(512, 768, 768, 1, 32, LX_BUDGET, "spyre", True)
    assert rows_pay(64, 96, 64, 1, 32, LX_BUDGET, "spyre", True)  # a launch costs more than the better division gives
    assert rows_pay(1 << 17, 384, 384, 1, 32, LX_BUDGET, "spyre", True)  # 100 MB do not fit


def _two_products(x, w, v):
    return F.layer_norm(F.layer_norm(x, (x.shape[1],)) @ w, (w.shape[1],)) @ v


@pytest.mark.parametrize("m, rows", [(512, True), (1, False), (70, None)])
def test_the_clock_decides_where_rows_kept_in_lx_stay(m, rows, caplog):
    args = [half(m, 512), half(512, 512, seed=1, scale=0.05), half(512, 512, seed=2, scale=0.05)]
    placed = [a.to("spyre") for a in args]
    expected = _two_products(*(a.cpu().float() for a in placed))
    times = []
    for searched in (True, False):
        torch._dynamo.reset()
        anew = torch._inductor.config.patch(force_disable_caches=True)
        log = caplog.at_level(logging.DEBUG, logger="torch_loom.inductor.homes")
        with anew, log, config.patch(work_division=searched, fusion=False):
            fn = torch.compile(_two_products, dynamic=False)
            fn(*placed)
            with recorded_launches() as records:
                out = fn(*placed).cpu()
        times.append(sum(row.modelled_us for row in launch_rows(records, CHIP)))
        torch.testing.assert_close(out.float(), expected, rtol=2 * DF16_HALF_STEP, atol=6e-3)
    assert times[0] <= 1.01 * times[1]
    found = re.findall(r"over rows: (\d+) ns, searched: (\d+) ns", caplog.text)
    assert found and (rows is None or rows in [int(over_rows) < int(searched) for over_rows, searched in found])
