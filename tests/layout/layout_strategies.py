"""Random host tensors and layouts, kept small enough for the walking oracle."""

from hypothesis import strategies as st

from torch_loom.layout import SpyreTensorLayout

DTYPES = ["float16", "float32", "float8_e4m3fn", "int64", "bool"]


@st.composite
def hosts(draw, max_rank=4):
    """(size, strides): dense in any dim order, sometimes with gaps and broadcast dims."""
    rank = draw(st.integers(0, max_rank))
    size = [draw(st.sampled_from([1, 2, 3, 5])) for _ in range(rank)]
    if rank:
        size[draw(st.integers(0, rank - 1))] = draw(st.sampled_from([1, 31, 63, 64, 65, 130]))
    strides, step = [0] * rank, 1
    for dim in draw(st.permutations(range(rank))):
        strides[dim] = step
        step *= size[dim]
        if draw(st.integers(0, 4)) == 0:
            step += draw(st.integers(1, 7))
    return size, strides


@st.composite
def layouts(draw, max_rank=4):
    """(layout, size, strides) of a chosen-order or sparse layout."""
    size, strides = draw(hosts(max_rank))
    order = list(draw(st.permutations(range(len(size)))))
    if order and draw(st.integers(0, 5)) == 0:
        order.append(-1)
    return SpyreTensorLayout(size, strides, draw(st.sampled_from(DTYPES)), order), size, strides
