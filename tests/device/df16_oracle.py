"""df16 by its definition in float64 arithmetic: no code shared with the implementation under test."""

import numpy as np

TINY = 2.0**-31 * (513 / 512)
LARGEST = 2.0**32 * (1 + 510 / 512)


def round_df16(values: np.ndarray) -> np.ndarray:
    """Nearest df16 value, ties up in magnitude; NaN where the merged code results.

    Infinity is not a value of the format; the transfer takes it for the largest one."""
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        magnitude = np.abs(x)
        _, exponent = np.frexp(magnitude)
        step = np.ldexp(1.0, exponent - 1 - 9)
        rounded = np.floor(magnitude / step + 0.5) * step
        rounded = np.where(rounded < TINY, np.where(magnitude < TINY / 2, 0.0, TINY), rounded)
        rounded = np.where(np.isfinite(x) & (rounded <= LARGEST), rounded, np.nan)
        rounded = np.where(np.isinf(x), LARGEST, rounded)
        return np.copysign(rounded, np.where(rounded == 0, 1.0, x))


def encode_df16(values: np.ndarray) -> np.ndarray:
    """Codes of values: sign, exponent and fraction fields put together one by one."""
    v = round_df16(values)
    magnitude = np.abs(np.nan_to_num(v, nan=1.0))
    _, exponent = np.frexp(magnitude)
    field = exponent - 1 + 31
    fraction = np.rint((magnitude / np.ldexp(1.0, exponent - 1) - 1) * 512)
    code = (field * 512 + fraction).astype(np.int64) | np.where(v < 0, 0x8000, 0)
    code = np.where(v == 0, 0, code)
    return np.where(np.isnan(v), 0x7FFF, code).astype(np.uint16)
