"""What a value becomes on the way to the device and back, dtype by dtype."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from df16_oracle import LARGEST, TINY, encode_df16, round_df16

from torch_loom import _device

ALL_HALVES = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.float16)
ALL_BF16 = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def codes(tensor: torch.Tensor) -> np.ndarray:
    """The 16-bit codes of a one-dimensional device tensor."""
    return np.frombuffer(_device.device_bytes(tensor), np.uint16)[: tensor.numel()]


def test_every_half_lands_on_the_nearest_df16():
    on_device = ALL_HALVES.to("spyre")
    np.testing.assert_array_equal(codes(on_device), encode_df16(ALL_HALVES.double().numpy()))


def test_every_bfloat16_lands_on_the_nearest_df16():
    on_device = ALL_BF16.to("spyre")
    np.testing.assert_array_equal(codes(on_device), encode_df16(ALL_BF16.double().numpy()))


def test_float32_to_half_tensor_rounds_once():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy())
    on_device = torch.empty(values.shape, dtype=torch.float16, device="spyre")
    on_device.copy_(values)
    np.testing.assert_array_equal(codes(on_device), encode_df16(values.double().numpy()))


def test_every_df16_code_comes_back_as_the_nearest_half():
    bits = np.arange(65536, dtype=np.uint16)
    sign = np.where(bits & 0x8000, -1.0, 1.0)
    e, f = (bits >> 9 & 63).astype(np.float64), (bits & 511).astype(np.float64)
    value = sign * np.ldexp(1 + f / 512, (e - 31).astype(np.int64))
    value[(bits & 0x7FFF) == 0] = 0.0
    value[(bits & 0x7FFF) == 0x7FFF] = np.nan
    on_device = torch.empty(65536, dtype=torch.float16, device="spyre")
    on_device.copy_(torch.from_numpy(value).float())
    back = on_device.cpu()
    with np.errstate(over="ignore"):
        expected = value.astype(np.float16)
    # 65536 is what 65504 became on the way in; larger magnitudes are infinite in a half.
    expected[np.abs(value) == 65536.0] = np.copysign(65504.0, value[np.abs(value) == 65536.0])
    np.testing.assert_array_equal(back.numpy(), expected)


def test_largest_half_survives_a_round_trip():
    limits = torch.tensor([65504.0, -65504.0], dtype=torch.float16)
    assert torch.equal(limits.to("spyre").cpu(), limits)


def test_df16_beyond_half_reads_as_infinity_and_nan_stays_nan():
    wide = torch.tensor([65664.0, -1e6, float("nan"), float("-inf")])
    on_device = torch.empty(4, dtype=torch.float16, device="spyre")
    on_device.copy_(wide)
    assert codes(on_device).tolist()[2:] == [0x7FFF, 0xFFFE]
    back = on_device.cpu()
    assert back[0] == float("inf") and back[1] == float("-inf")
    assert back[2].isnan() and back[3] == float("-inf")


def test_the_ends_of_the_range():
    below_half = np.nextafter(np.float32(TINY / 2), np.float32(0))
    values = np.array([TINY, TINY / 2, below_half, 2.0**-31, LARGEST, 2.0**33], dtype=np.float32)
    on_device = torch.empty(6, dtype=torch.bfloat16, device="spyre")
    on_device.copy_(torch.from_numpy(values))
    assert codes(on_device).tolist() == [1, 1, 0, 1, 0x7FFE, 0x7FFF]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_tensor_reads_back_as_its_rounded_value(dtype):
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = torch.from_numpy(round_df16(values.double().numpy())).to(dtype)
    assert torch.equal(values.to("spyre").cpu(), expected)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.int64, -(2**31), 2**31 - 1),
        (torch.int32, -(2**31), 2**31 - 1),
        (torch.int16, -(2**15), 2**15 - 1),
        (torch.int8, -128, 127),
        (torch.uint8, 0, 255),
    ],
)
def test_integers_are_exact(dtype, low, high):
    values = torch.tensor([low, -1 % 256 if low == 0 else -1, 0, 1, 77, high], dtype=dtype).repeat(50)
    back = values.to("spyre").cpu()
    assert back.dtype == dtype and torch.equal(back, values)


def test_float32_and_bool_are_exact():
    values = torch.randn(777)
    assert torch.equal(values.to("spyre").cpu(), values)
    flags = values > 0
    on_device = flags.to("spyre")
    assert torch.equal(on_device.cpu(), flags)
    assert set(codes(on_device)) == {0, 31 << 9}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2fnuz])
def test_fp8_bytes_are_kept(dtype):
    values = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    back = values.to("spyre").cpu()
    assert torch.equal(back.view(torch.uint8), values.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2fnuz])
def test_fp8_conversions_agree_with_torch(dtype):
    codes8 = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    on_device = codes8.to("spyre")
    back = torch.empty(256)
    back.copy_(on_device)
    assert torch.equal(back.nan_to_num(nan=12345.0), codes8.float().nan_to_num(nan=12345.0))
    # Values between codes and below the largest one.
    limit = 448.0 if dtype == torch.float8_e4m3fn else 240.0
    values = torch.randn(4000, generator=torch.Generator().manual_seed(2)).mul(60).clamp(-limit, limit)
    values = torch.cat([values, values * 2.0**-12])
    encoded = torch.empty(values.shape, dtype=dtype, device="spyre")
    encoded.copy_(values)
    assert torch.equal(encoded.cpu().float(), values.to(dtype).float())


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 3_000_000_000, 2**62])
def test_an_int64_that_does_not_fit_is_named(value):
    with pytest.raises(RuntimeError, match=f"value {value} does not fit"):
        torch.tensor([1, 2, value]).to("spyre")
    assert torch.equal(torch.arange(5).to("spyre").cpu(), torch.arange(5))


def test_float_to_int64_checks_the_range_too():
    on_device = torch.empty(2, dtype=torch.int64, device="spyre")
    with pytest.raises(RuntimeError, match="does not fit"):
        on_device.copy_(torch.tensor([1.0, 1e12]))


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128, torch.complex32])
def test_refused_dtypes_give_one_clear_line(dtype):
    with pytest.raises(RuntimeError, match="does not support dtype") as error:
        torch.empty(3, dtype=dtype, device="spyre")
    assert str(dtype) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="does not support dtype"):
        torch.zeros(3, dtype=dtype).to("spyre")


CONVERTIBLE = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.bool,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
]


@pytest.mark.parametrize("source", CONVERTIBLE)
@pytest.mark.parametrize("target", CONVERTIBLE)
def test_conversion_on_the_device_equals_conversion_on_the_host(source, target):
    # Small whole numbers are exact in every format involved.
    values = (torch.arange(1, 200) % 120).to(source)
    expected = values.to(target)
    assert torch.equal(values.to("spyre").to(target).cpu(), expected)
    assert torch.equal(values.to("spyre", dtype=target).cpu(), expected)
    host = torch.empty(values.shape, dtype=target)
    host.copy_(values.to("spyre"))
    assert torch.equal(host, expected)


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_a_host_tensor_of_a_refused_dtype_can_still_be_copied_into_a_device_tensor(dtype):
    values = torch.tensor([1.5, -2.0, 3.25], dtype=dtype)
    on_device = torch.zeros(3, device="spyre")
    on_device.copy_(values)
    assert on_device.tolist() == [1.5, -2.0, 3.25]
    back = torch.empty(3, dtype=dtype)
    back.copy_(on_device)
    assert torch.equal(back, values)


def test_ieee_numerics_keep_half_and_bfloat16():
    code = (
        "import torch, torch_loom\n"
        "from torch_loom import _device\n"
        "bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)\n"
        "for dtype, name in ((torch.float16, 'IEEE_FP16'), (torch.bfloat16, 'BFLOAT16')):\n"
        "    x = bits.view(dtype).to('spyre')\n"
        "    assert _device.layout(x)['format'] == name\n"
        "    assert torch.equal(x.cpu().view(torch.int16), bits)\n"
        "flags = torch.tensor([True, False, True])\n"
        "assert torch.equal(flags.to('spyre').cpu(), flags)\n"
        "print('kept')\n"
    )
    env = {**os.environ, "TORCH_LOOM_NUMERICS": "ieee"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "kept", done.stderr


# ---- large transfers take other routes: blocks that are transposed, results written past the caches ----

BIG = (1030, 2100)  # more than the size at which results go past the caches, in no dim a whole number of sticks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[3:, 17:2090],
        lambda t: t[:, 5:].t(),
        lambda t: t[::2, ::3],
        lambda t: t.reshape(103, 10, 2100).permute(1, 2, 0),
        lambda t: t.flatten(),
        lambda t: t.reshape(-1)[1:],
    ],
)
def test_large_views_move_both_ways(dtype, view):
    host = (torch.arange(BIG[0] * BIG[1]) % 251).reshape(BIG).to(dtype)
    wanted = view(host)
    there = torch.zeros(wanted.shape, dtype=dtype, device="spyre").copy_(wanted)
    assert torch.equal(there.cpu(), wanted.contiguous())
    inside = view(host.to("spyre"))
    back = torch.zeros_like(wanted)  # keeps the view's strides
    assert torch.equal(back.copy_(inside), wanted)
    assert torch.equal(inside.contiguous().cpu(), wanted.contiguous())
    assert torch.equal(view(torch.zeros(BIG, dtype=dtype, device="spyre")).copy_(wanted).cpu(), wanted)


def test_transposes_of_every_width_and_edge():
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        for rows, columns in ((8, 9), (63, 65), (64, 128), (130, 31), (1, 200), (200, 7)):
            host = (torch.arange(rows * columns) % 113).reshape(rows, columns).to(dtype)
            assert torch.equal(host.t().to("spyre").cpu(), host.t())
            assert torch.equal(host.to("spyre").t().cpu(), host.t())
            assert torch.equal(host.to("spyre").t().contiguous().cpu(), host.t())


def test_an_int64_that_does_not_fit_is_found_in_large_transfers():
    host = torch.zeros(BIG, dtype=torch.int64)
    host[1029, 2099] = 1 << 31
    for view in (host, host.t()):
        with pytest.raises(RuntimeError, match="the value 2147483648 does not fit"):
            view.to("spyre")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2fnuz])
def test_fp8_beyond_its_range_is_what_torch_makes_of_it(dtype):
    edges = [
        0.0,
        447.0,
        448.0,
        463.9,
        464.0,
        465.0,
        480.0,
        1e9,
        float("inf"),
        57344.0,
        61439.0,
        61440.0,
        1e-9,
        2.0**-10,
    ]
    host = torch.tensor([*edges, *(-v for v in edges)])
    there = host.to("spyre").to(dtype).cpu()
    assert torch.equal(there.view(torch.uint8), host.to(dtype).view(torch.uint8))
    assert torch.tensor([float("nan")]).to("spyre").to(dtype).cpu().float().isnan().all()


def test_uint8_lies_in_32_bits_as_in_the_public_stack():
    t = torch.arange(200, dtype=torch.uint8).to("spyre")
    layout = t.device_tensor_layout()
    from torch_loom.layout import SpyreTensorLayout

    assert layout == SpyreTensorLayout([200], torch.uint8)
    words = torch.frombuffer(bytearray(_device.device_bytes(t)), dtype=torch.int32)[:200]
    assert torch.equal(words, torch.arange(200, dtype=torch.int32))
    assert torch.equal(t.view(torch.int8).cpu(), torch.arange(200, dtype=torch.uint8).view(torch.int8))
    assert (torch.tensor([300, -1]).to("spyre").to(torch.uint8).cpu()).tolist() == [44, 255]
