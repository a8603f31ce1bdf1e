"""Chip files: presets, overrides, provenance, and errors that name file and field."""

import pytest

from torch_loom import arch
from torch_loom.arch import ArchError, Basis
from torch_loom.spyrecode.model import Profile


def test_the_spyre_preset_has_the_published_figures():
    chip = arch.load("spyre")
    assert (chip.cores, chip.corelets, chip.lx_bytes, chip.stick_bytes) == (32, 2, 2 << 20, 128)
    assert chip.lanes() == 64
    assert chip.lanes(32) == 32
    assert chip.clock_hz == 1.5e9
    assert chip.peak_flops == pytest.approx(98.304e12)
    assert chip.ddr.peak_bytes_per_s.value == 204.8e9
    assert chip.lx_plan_bytes == 1677721 // 128 * 128
    assert chip.profile() == Profile("spyre", 32, 2, 2 << 20)


def test_the_mini_preset_differs_in_size_only():
    mini, full = arch.load("spyre-mini"), arch.load("spyre")
    assert (mini.cores, mini.lx_bytes, mini.lx_plan_bytes) == (4, 65536, 65536)
    changed = {k for k, p in mini.params().items() if p.value != full.params()[k].value}
    assert changed == {"core.count", "lx.bytes", "lx.reserved_fraction"}


def test_every_parameter_says_where_it_comes_from():
    for name in arch.presets():
        for key, param in arch.load(name).params().items():
            assert param.basis in Basis, key
            assert param.source, key


def test_clock_params_are_flat_numbers():
    params = arch.load("spyre").clock_params()
    assert params["core.count"] == 32.0
    assert params["ddr.channels"] == 16.0
    assert all(isinstance(v, float) for v in params.values())


def test_description_shows_marks_and_sources():
    text = arch.describe(arch.load("spyre"))
    assert "32 cores" in text
    assert "P published, M measured, a assumed" in text
    line = next(line for line in text.splitlines() if line.startswith("ddr.latency_ns"))
    assert "  M  C12" in line
    drawn = arch.draw(arch.load("spyre-mini")).splitlines()
    assert len({len(line) for line in drawn if line.startswith(("┌", "│", "└"))}) == 1


def test_rates_of_the_roofline_follow_the_measurements():
    """C2 150 GB/s one way, C3 105 GB/s mixed, C7 1140 MAC/ns and core, C8 less below 64 rows."""
    chip = arch.load("spyre")
    assert chip.ddr_bytes_per_s == pytest.approx(150e9, rel=0.02)
    assert 2e9 / chip.ddr_seconds(1e9, 1e9) == pytest.approx(105e9, rel=0.02)
    assert chip.ddr_seconds(1e9, 0) == pytest.approx(1 / 150, rel=0.02)
    per_core = 2e9 * chip.cores
    assert chip.matmul_flops() == chip.matmul_flops(1000) == pytest.approx(1140 * per_core, rel=0.03)
    for rows in (1, 2, 4, 8, 16, 32):
        assert chip.matmul_flops(rows) == pytest.approx(1140 * (rows / 64) ** 0.35 * per_core, rel=0.1)


def write(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_a_file_extends_a_preset_and_marks_what_it_changes(tmp_path):
    path = write(tmp_path, 'extends = "spyre"\nname = "twin"\n[core]\ncount = 64\n[pt]\nrows = 16\n')
    chip = arch.load(path)
    assert (chip.name, chip.cores, chip.macs_per_cycle) == ("twin", 64, 1024)
    assert chip.core.count.basis is Basis.ASSUMED
    assert chip.core.count.source == "set in own.toml"
    (tmp_path / "child.toml").write_text('extends = "own.toml"\nname = "child"\n')
    assert arch.load(tmp_path / "child.toml").cores == 64


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[core]\ncount = 0", "core.count must be 1..1024, not 0"),
        ("[core]\ncount = 2.5", "core.count.value: Input should be a valid integer"),
        ('[core]\ncount = "many"', "core.count"),
        ("[core]\nwheels = 4", "core.wheels: Extra inputs are not permitted"),
        ("[engine]\nx = 1", "engine: Extra inputs are not permitted"),
        ("[lx]\nbytes = 1000", "lx.bytes must be a multiple of the stick"),
        ("[lx]\nstick_bytes = 96", "lx.stick_bytes must be a power of two"),
        ("[lx]\nreserved_fraction = 1.0", "lx.reserved_fraction must be below 1"),
        ("[ddr]\nrefresh_ns = 4000.0", "ddr.refresh_ns must be below ddr.refresh_interval_ns"),
        ("[ddr]\nports = 0", "ddr.ports must be above 0"),
        ("[card]\npacket_payload_bytes = 0", "card.packet_payload_bytes must be above 0"),
        ("[ddr]\nlatency_ns = -1.0", "ddr.latency_ns.value: must not be negative"),
        ("[ddr]\nlatency_ns = nan", "ddr.latency_ns.value: must not be negative"),
        ("[dma]\nread_bytes_per_cycle = 0.0", "dma.read_bytes_per_cycle must be above 0"),
        ('[pt]\nrows = { value = 8, basis = "guess", source = "x" }', "pt.rows.basis"),
        ('[pt]\nrows = { value = 8, basis = "assumed" }', "pt.rows.source: Field required"),
        ("[sfu]\nlanes_16bit = 32", "sfu.lanes_16bit must fill one stick of 16-bit elements"),
        ("format = 2", "format 2 is not supported"),
        ("= 3", "not valid TOML"),
    ],
)
def test_bad_files_name_the_field(tmp_path, body, words):
    lines = ['extends = "spyre"', body]
    with pytest.raises(ArchError) as error:
        arch.load(write(tmp_path, "\n".join(lines)))
    assert words in str(error.value)
    assert "own.toml" in str(error.value)


def test_missing_and_circular_files(tmp_path):
    with pytest.raises(ArchError, match=r"nowhere: neither a preset \(spyre, spyre-mini\) nor a file"):
        arch.load("nowhere")
    with pytest.raises(ArchError, match="extends itself"):
        arch.load(write(tmp_path, 'extends = "own.toml"'))
    with pytest.raises(ArchError, match="extends must be the name"):
        arch.load(write(tmp_path, "extends = 3"))
    with pytest.raises(ArchError, match="Field required"):
        arch.load(write(tmp_path, 'format = 1\nname = "x"\nsummary = ""\n'))


def test_lanes_of_an_odd_width():
    with pytest.raises(ArchError, match="12-bit"):
        arch.load("spyre").lanes(12)


@pytest.mark.parametrize(("cores", "share"), [(1, 0.11), (2, 0.22), (4, 0.43), (8, 0.54), (16, 0.54), (32, 1.0)])
def test_few_cores_draw_the_published_share_of_the_memory(cores, share):
    chip = arch.load("spyre")
    assert chip.draw_bytes_per_s(cores) == pytest.approx(150e9 * share, rel=0.06)
    assert chip.ddr_seconds(1e9, 0, cores) == pytest.approx(1e9 / chip.draw_bytes_per_s(cores))
