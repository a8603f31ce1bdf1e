"""Places of the buffers between kernels: LX by what it saves, a pool for the rest, never two at one place."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from torch_loom.inductor.residency import Between, choose, demand, lay_out

LX = 2 << 20


@st.composite
def jobs(draw):
    """Buffers and the LX that each step uses itself."""
    steps = draw(st.integers(1, 12))
    buffers = []
    for _ in range(draw(st.integers(0, 14))):
        first = draw(st.integers(0, steps - 1))
        last = draw(st.integers(first, steps - 1))
        size = draw(st.sampled_from([0, 2, 128, 1000, 1 << 16, 3 << 20, 40 << 20]))
        buffers.append(Between(size, first, last, draw(st.integers(1, 3)), draw(st.sampled_from([1, 7, 32]))))
    used = draw(st.lists(st.integers(0, LX), min_size=steps, max_size=steps))
    return buffers, used


def assert_sound(buffers, used, layout):
    for i, (b, (at, size, share)) in enumerate(zip(buffers, layout.places, strict=True)):
        assert size == b.bytes and at % 128 == 0 and share % 128 == 0
        if share:
            assert share * b.cores >= size and at + share <= LX
            assert at >= max(used[b.first : b.last + 1])
        else:
            assert at + size <= layout.pool_bytes
        for j in range(i):
            other, (theirs, length, part) = buffers[j], layout.places[j]
            if b.meets(other) and bool(share) == bool(part) and size and length:
                mine, other_bytes = (share or size), (part or length)
                assert at >= theirs + other_bytes or theirs >= at + mine


@given(jobs())
def test_no_two_live_buffers_meet_and_lx_is_never_exceeded(job):
    buffers, used = job
    assert_sound(buffers, used, lay_out(buffers, used, LX, [True] * len(buffers)))


@given(jobs())
def test_the_pool_is_as_large_as_what_lives_at_once_when_lives_do_not_interleave(job):
    buffers, used = job
    nested = [b for b in buffers if all(b is o or not b.meets(o) or b.first == o.first for o in buffers)]
    layout = lay_out(nested, used, LX, [False] * len(nested))
    assert_sound(nested, used, layout)
    assert layout.pool_bytes >= demand(nested, layout)
    if all(not a.meets(b) for a, b in combinations(nested, 2)):
        assert layout.pool_bytes == demand(nested, layout)


def test_a_gap_beside_one_buffer_may_lie_inside_of_another():
    size = 32 * 1024
    lives = [(0, 1), (2, 3), (3, 4), (1, 4), (0, 4)]
    buffers = [Between(size * (1 + i % 2), first, last, 5 - i, 32) for i, (first, last) in enumerate(lives)]
    assert_sound(buffers, [0] * 5, lay_out(buffers, [0] * 5, 5 * 1024, [True] * 5))


def test_bytes_of_a_dead_buffer_are_used_again():
    chain = [Between(1 << 20, i, i + 1, 1, 32) for i in range(10)]
    layout = lay_out(chain, [LX] * 11, LX, [True] * 10)
    assert layout.pool_bytes == demand(chain, layout) == 2 << 20


def test_lx_goes_to_what_is_read_most_for_its_size():
    used = [LX - 4096] * 2
    rare, often = Between(32 * 4096, 0, 1, 1, 32), Between(32 * 4096, 0, 1, 3, 32)
    layout = lay_out([rare, often], used, LX, [True, True])
    assert not layout.kept(0) and layout.kept(1)


def test_a_buffer_moves_to_ddr_where_the_clock_says_so():
    buffers = [Between(1 << 16, 0, 1, 1, 32), Between(1 << 16, 1, 2, 1, 32)]
    users = [[0, 1], [1, 2]]

    def time(step, layout):  # step 2 is slow when it reads LX, all others gain
        if step == 2:
            return 500.0 if layout.kept(1) else 100.0
        return 100.0 - 10.0 * sum(layout.kept(i) for i in (0, 1) if step in users[i])

    layout = choose(buffers, [0, 0, 0], LX, users, time)
    assert layout.kept(0) and not layout.kept(1)
