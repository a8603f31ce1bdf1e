"""Random well-formed programs, for round trips."""

from __future__ import annotations

from hypothesis import strategies as st

NAMES = ["a", "b", "row", "x_1", "x_2", "k$z", "v.w", "_u", "to", "step", "q-r"]
FLOATS = ["f16", "f32", "bf16"]


@st.composite
def index_exprs(draw, ids, depth=3):
    """An affine expression over SSA ids, nested up to ``depth``."""
    if depth == 0 or not ids or draw(st.booleans()):
        return draw(st.sampled_from([*ids, "0", "1", "7", "-3"])) if ids else str(draw(st.integers(-9, 9)))
    left = draw(index_exprs(ids, depth - 1))
    kind = draw(st.sampled_from(["+", "-", "*", "floordiv", "mod", "ceildiv"]))
    if kind in "+-":
        return f"({left} {kind} {draw(index_exprs(ids, depth - 1))})"
    if kind == "*":
        return f"({left} * {draw(st.integers(-4, 64))})"
    return f"({left} {kind} {draw(st.integers(1, 64))})"


@st.composite
def constraint_sets(draw, rank, symbols):
    """A set with boxes and now and then something else."""
    names = [f"i{k}" for k in range(rank)]
    parts = []
    for name in names:
        high = draw(st.integers(0, 63))
        form = draw(st.integers(0, 3))
        if form == 0:
            parts.append(f"{name} >= 0, -{name} + {high} >= 0")
        elif form == 1:
            parts.append(f"0 <= {name} <= {high}")
        elif form == 2 and symbols:
            parts.append(f"{name} >= 0, n0 - {name} - 1 >= 0")
        else:
            parts.append(f"{name} >= 0, {name} <= {high}, {name} mod {draw(st.integers(1, 4))} == 0")
    dims = ", ".join(names)
    head = f"({dims})" + (f"[{', '.join(f'n{k}' for k in range(symbols))}]" if symbols else "")
    return f"affine_set<{head} : ({', '.join(parts)})>"


@st.composite
def programs(draw):
    """A program text with index arithmetic, views, tiles and tensor ops."""
    lines: list[str] = []
    ids = ["%n", "%m"]
    if draw(st.booleans()):
        count = draw(st.integers(1, 3))
        lines.append(f"%ct:{count} = ktdp.get_compute_tile_id : {', '.join(['index'] * count)}")
        ids += [f"%ct#{k}" for k in range(count)]
    used = set()
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from([n for n in NAMES if n not in used] or ["zz"]))
        if name in used or name == "zz":
            continue
        used.add(name)
        op = draw(st.sampled_from(["addi", "subi", "muli", "minsi", "divui", "remsi"]))
        lines.append(f"%{name} = arith.{op} {draw(st.sampled_from(ids))}, {draw(st.sampled_from(ids))} : index")
        ids.append(f"%{name}")
    for number in range(draw(st.integers(1, 3))):
        lines += draw(tiles(number, ids))
    grid = draw(
        st.sampled_from(
            ["", " attributes {grid = [4]}", " attributes {grid = [2, 2]}", " attributes {grid = [4 : i64]}"]
        )
    )
    text = f"func.func @f(%x: index, %n: index, %m: index){grid} {{\n" + "\n".join(lines) + "\nreturn\n}"
    return draw(
        st.sampled_from([text, f"module {{\n{text}\n}}", f"module @m attributes {{loom.a = 1 : i32}} {{\n{text}\n}}"])
    )


@st.composite
def tiles(draw, number, ids):
    """A view, an access tile of it, a load, an elementwise op and a store."""
    rank = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(FLOATS))
    dynamic = [draw(st.booleans()) for _ in range(rank)]
    extents = [draw(st.integers(1, 64)) for _ in range(rank)]
    sizes = ["%n" if d else str(e) for d, e in zip(dynamic, extents, strict=True)]
    shape = "x".join("?" if d else str(e) for d, e in zip(dynamic, extents, strict=True))
    strides = [draw(st.sampled_from(["1", "64", "-64", "0", "%m"])) for _ in range(rank)]
    space = draw(
        st.sampled_from(
            [
                "#ktdp.memory_space<global>",
                "#ktdp.memory_space<ct_local>",
                "#ktdp.spyre_memory_space<HBM>",
                "#ktdp.spyre_memory_space<LX, core = 1>",
            ]
        )
    )
    colon = draw(st.sampled_from([":", " :"]))
    v, t = f"v{number}", f"t{number}"
    lines = [
        f"%{v} = ktdp.construct_memory_view %x, sizes{colon} [{', '.join(sizes)}], strides{colon} "
        f"[{', '.join(strides)}] "
        f"{{memory_space = {space}}} : memref<{shape}x{kind}>"
    ]
    symbols = draw(st.integers(0, 1))
    local = draw(constraint_sets(rank, symbols))
    subs = ", ".join(draw(index_exprs(ids)) for _ in range(rank))
    dims = [f"d{k}" for k in range(rank)]
    order = draw(st.permutations(dims))
    holes = "x".join(["?"] * rank)
    sym = " symbols(%n)" if symbols else ""
    lines.append(
        f"%{t} = ktdp.construct_access_tile %{v}[{subs}]{sym} {{access_tile_order = affine_map<({', '.join(dims)}) -> "
        f"({', '.join(order)})>, access_tile_set = {local}}} : memref<{shape}x{kind}> "
        f"-> !ktdp.access_tile<{holes}xindex>"
    )
    full = draw(st.booleans())
    tile_type = f"!ktdp.access_tile<{holes}xindex>" if full else f"<{holes}xindex>"
    tensor = f"tensor<{holes}x{kind}>"
    lines.append(f"%l{number} = ktdp.load %{t} : {tile_type} -> {tensor}")
    flags = draw(st.sampled_from(["", " fastmath<fast>", " fastmath<nnan,ninf>"]))
    op = draw(st.sampled_from(["arith.addf", "arith.mulf", "arith.maximumf"]))
    lines.append(f"%e{number} = {op} %l{number}, %l{number}{flags} : {tensor}")
    if draw(st.booleans()):
        lines.append(
            f"%r{number} = scf.for %i{number} = %n to %m step %n iter_args(%c{number} = %e{number}) -> ({tensor}) {{\n"
            f"%s{number} = math.exp %c{number} : {tensor}\nscf.yield %s{number} : {tensor}\n}}"
        )
        lines.append(f"ktdp.store %r{number}, %{t} : {tensor}, <{holes}xindex>")
    else:
        lines.append(f"ktdp.store %e{number}, %{t} : {tensor}, <{holes}xindex>")
    return lines
