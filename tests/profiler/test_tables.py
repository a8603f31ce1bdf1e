"""Tables and rows as people and programs read them."""

import io

from rich.console import Console

from torch_loom.profiler import CompileLine, LaunchRow, launch_table, matrix_table, size_text

ROWS = [
    LaunchRow("matmul_0", 12.5, 0.75, 0.1, 1 << 20, "PT"),
    LaunchRow("softmax_1", 2.25, 0.0, 0.5, 2048, "DDR read"),
]


def printed(table):
    stream = io.StringIO()
    Console(file=stream, width=100).print(table)
    return stream.getvalue()


def test_a_row_has_the_public_names():
    assert ROWS[0].as_dict() == {
        "name": "matmul_0",
        "modelled_us": 12.5,
        "pt_util": 0.75,
        "sfu_util": 0.1,
        "ddr_bytes": 1048576,
        "bottleneck": "PT",
        "between_bytes": {},
    }


def test_the_launch_table_has_a_line_per_launch_and_the_total():
    text = printed(launch_table(ROWS))
    assert "matmul_0" in text and "75.0%" in text and "1 MiB" in text
    assert "DDR read" in text and "2 KiB" in text
    assert "total of 2 launches" in text and "14.75" in text


def test_the_matrix_is_numbered():
    lines = printed(matrix_table([[1.0, 0.25], [0.25, 1.0]], "similarity")).splitlines()
    assert any("0.25" in line and "1.00" in line for line in lines)


def test_sizes_have_binary_units():
    assert [size_text(n) for n in (0, 1023, 1024, 1536, 1 << 30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "1 GiB",
    ]


def test_the_compile_line_follows_the_events():
    line = CompileLine()
    assert str(line) == "tracing"
    line.event("start", "a")
    assert str(line) == "0 kernels compiled, a"
    line.event("done", "a")
    line.event("cached", "b")
    assert str(line) == "1 kernels compiled, 1 from the cache"
