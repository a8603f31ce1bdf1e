"""Text pictures of a chip for people: a block drawing and the table of parameters with their sources."""

from __future__ import annotations

from torch_loom.arch.chip import Basis, Chip

_MARK = {Basis.PUBLISHED: "P", Basis.MEASURED: "M", Basis.ASSUMED: "a"}


def _size(count: float) -> str:
    """A byte count in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.4g} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def draw(chip: Chip) -> str:
    """The chip as boxes: card, one core, its corelets, with sizes and rates on the links."""
    pt = chip.pt
    ddr = chip.ddr
    usable = (ddr.bytes.value - ddr.ecc_bytes.value) / 1e9
    inner = [
        f"LX {_size(chip.lx_bytes)}, sticks of {chip.stick_bytes} B",
        f"  | {chip.lx.read_bytes_per_cycle.value:g} B/cycle read, "
        f"{chip.lx.write_bytes_per_cycle.value:g} B/cycle write per corelet",
        f"corelet x {chip.corelets}",
        f"  L1LU -> PT  {pt.rows.value} x {pt.columns.value} elements x {pt.macs_per_element.value} MAC "
        f"-> SFU {chip.lanes()} lanes -> L1SU",
        f"  queues {chip.queue.depth.value} deep, registers {_size(chip.sfu.register_bytes.value)}",
        f"MNILU {chip.dma.read_bytes_per_cycle.value:g} B/cycle in, "
        f"MNISU {chip.dma.write_bytes_per_cycle.value:g} B/cycle out",
    ]
    outer = [
        f"{chip.cores} cores on a ring ({chip.ring.bytes_per_cycle.value:g} B/cycle per direction)",
        *_box(inner, "core"),
        "  |",
        f"DDR {ddr.bytes.value / 1e9:.4g} GB ({usable:.4g} GB usable), "
        f"{ddr.peak_bytes_per_s.value / 1e9:.4g} GB/s peak",
        f"PCIe {chip.pcie.bytes_per_s.value / 1e9:.4g} GB/s to the host",
    ]
    rates = f"{chip.clock_hz / 1e9:.4g} GHz, {chip.peak_flops / 1e12:.6g} TFLOP/s (16 bit)"
    return "\n".join([f"{chip.name}: {chip.summary}", rates, *_box(outer, "card")])


def _box(lines: list[str], title: str) -> list[str]:
    width = max(len(line) for line in lines)
    top = f"┌─ {title} " + "─" * (width - len(title) - 1) + "┐"
    return [top, *(f"│ {line.ljust(width)} │" for line in lines), "└" + "─" * (width + 2) + "┘"]


def describe(chip: Chip) -> str:
    """The drawing and every parameter with value, mark (P published, M measured, a assumed) and source."""
    rows = [(name, f"{p.value:.10g}", _MARK[p.basis], p.source) for name, p in chip.params().items()]
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    table = [f"{n.ljust(wide[0])}  {v.rjust(wide[1])}  {m}  {s}" for n, v, m, s in rows]
    legend = "P published, M measured, a assumed"
    return "\n".join([draw(chip), "", legend, *table])
