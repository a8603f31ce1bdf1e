"""Hand-written SpyreCode for launch tests, in the assembler's text form.

``scale``: out = a * k over n sticks of df16. Extra buffers and integers only lengthen the call.
``gather``: out[i, :] = table[index[i], :] for four rows of one stick; an index outside the table is an error
that only the running program can find.
"""

from torch_loom import spyrecode

_ADDRESS = "min 0 max 4611686018427387904 gran 128"


def scale(buffers: int = 2, ints: int = 1) -> bytes:
    """Arguments: a, out, (unused buffers), n sticks (0..64), (unused ints), k."""
    names = ["a", "out", *(f"x{i}" for i in range(buffers - 2))]
    numbers = ["n", *(f"m{i}" for i in range(ints - 1))]
    lines = ['.spyrecode 1\n.kernel "scale" cores 1\n.chip "spyre" cores 32 corelets 2 lx 2097152 stick 128']
    lines += [f'.arg {i} "{n}" buffer df16 {"write" if n == "out" else "read"}' for i, n in enumerate(names)]
    lines += [f'.arg {buffers + i} "{n}" int df16 read' for i, n in enumerate(numbers)]
    lines.append(f'.arg {buffers + ints} "k" float df16 read')
    lines += [f'.symbol s{i} "{n}" = address({i}) {_ADDRESS}' for i, n in enumerate(names)]
    lines += [f'.symbol s{buffers + i} "{n}" = dim({buffers + i}) min 0 max 64 gran 1' for i, n in enumerate(numbers)]
    lines.append(
        f'.symbol s{buffers + ints} "k" = scalar({buffers + ints}) '
        "min -4611686018427387904 max 4611686018427387904 gran 1"
    )
    lines.append(
        f""".slot $0 launch = s0
.slot $1 launch = s1
.slot $2 launch = s{buffers}
.slot $3 launch = s{buffers} * 64
.slot $4 launch = s{buffers + ints}
.lx 0 "in" at 0 size 8192 phases 1
.lx 1 "res" at 8192 size 8192 phases 1
.chan 0 "c0" MNILU -> L1LU phases 1 [@in]
.chan 1 "c1" L1SU -> MNISU phases 1 [@res]
.unit MNILU
  acquire c0.empty
  copy ddr[0 $0] lx[@in.c0] leaf 128
    dim $2 ddr 128 lx 128
  release c0.full
.unit MNISU
  acquire c1.full
  copy ddr[1 $1] lx[@res.c1] leaf 128
    dim $2 ddr 128 lx 128
  release c1.empty
.unit L1LU
  acquire c0.full
  load seg 0 q0 <- lx[@in.c0] df16 (1)
  release c0.empty
.unit SFU
  vec seg 0 over ($3)
    v0 = q0
    v1 = scalar_f 4
    v2 = mul_f v0 v1
    q1 = v2
  end
.unit L1SU
  acquire c1.empty
  store seg 0 q1 -> lx[@res.c1] df16 (1)
  release c1.full"""
    )
    return spyrecode.encode(spyrecode.assemble("\n".join(lines) + "\n"))


def gather(rows: int = 16) -> bytes:
    """Arguments: index (4 x int32), table (rows x 64), out (4 x 64)."""
    text = f""".spyrecode 1
.kernel "gather" cores 1
.chip "spyre" cores 32 corelets 2 lx 2097152 stick 128
.arg 0 "index" buffer i32 read
.arg 1 "table" buffer df16 read
.arg 2 "out" buffer df16 write
.symbol s0 "index" = address(0) {_ADDRESS}
.symbol s1 "table" = address(1) {_ADDRESS}
.symbol s2 "out" = address(2) {_ADDRESS}
.slot $0 launch = s0
.slot $1 launch = s1
.slot $2 launch = s2
.lx 0 "idx" at 0 size 128 phases 1
.lx 1 "rows" at 128 size 512 phases 1
.lx 2 "o" at 640 size 512 phases 1
.chan 0 "c0" MNILU -> L1LU phases 1 [@idx @rows]
.chan 1 "c1" L1SU -> MNISU phases 1 [@o]
.unit MNILU
  acquire c0.empty
  copy ddr[0 $0] lx[@idx.c0] leaf 128
    dim 1 ddr 0 lx 128
  copy ddr[1 $1] lx[@rows.c0] leaf 128
    dim 4 ddr 0 lx 128
    gather lx[@idx.c0] strides (4) scale 128 bound {rows}
  release c0.full
.unit MNISU
  acquire c1.full
  copy ddr[2 $2] lx[@o.c1] leaf 128
    dim 4 ddr 128 lx 128
  release c1.empty
.unit L1LU
  acquire c0.full
  load seg 0 q0 <- lx[@rows.c0] df16 (1)
  release c0.empty
.unit SFU
  vec seg 0 over (256)
    v0 = q0
    v1 = copy v0
    q1 = v1
  end
.unit L1SU
  acquire c1.empty
  store seg 0 q1 -> lx[@o.c1] df16 (1)
  release c1.full
"""
    return spyrecode.encode(spyrecode.assemble(text))
