"""Rows of launches: figures of the clock, one evaluation per plan and numbers."""

from types import SimpleNamespace

from torch_loom import arch
from torch_loom.profiler import LaunchRow, launch_rows


class FakePlan:
    """A plan with one buffer and one size, whose clock counts how often it is asked."""

    def __init__(self, name, address):
        self.name, self.address, self.asked = name, address, 0
        self.args = [("x", 0, 0, 1), ("n", 1, 0, 1)]

    def time(self, record, params):
        self.asked += 1
        assert params == arch.load("spyre").clock_params()
        n = record.args[1]
        return SimpleNamespace(
            ns=1000.0 * n,
            pt_util=0.5,
            sfu_util=0.25,
            ddr_read_bytes=n,
            ddr_write_bytes=2 * n,
            bottleneck="PT",
            between_bytes={},
        )


def test_rows_follow_the_launches_and_share_equal_ones():
    plan, twin = FakePlan("k", 0), FakePlan("k", 128)
    launches = [(plan, [256, 4]), (plan, [512, 4]), (plan, [256, 5]), (twin, [256, 4])]
    rows = launch_rows([SimpleNamespace(plan=p, args=a, call=a) for p, a in launches], arch.load("spyre"))
    assert rows == [LaunchRow("k", float(n), 0.5, 0.25, 3 * n, "PT") for n in (4, 4, 5, 4)]
    assert (plan.asked, twin.asked) == (2, 1)
