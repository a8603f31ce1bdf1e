"""A target of the eager recorder that is no device: a graph is one kernel, and a kernel runs its graph on the host."""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import torch

from torch_loom import _device
from torch_loom.eager import compiler, graph
from torch_loom.inductor.op_program import Kernel, Program

_numbers = itertools.count()


class _OnHost(torch.fx.Interpreter):
    """Runs a graph whose nodes may name the device."""

    def call_function(self, target, args, kwargs):
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return super().call_function(target, args, kwargs)


class ReferenceTarget:
    """Keeps graphs in this process only; ``graphs`` are those compiled so far."""

    def __init__(self, folder):
        self.folder = folder
        self.graphs = {}

    def identity(self):
        return f"reference {id(self)}"

    def cache_dir(self):
        return self.folder

    def decompositions(self):
        return {}

    def compile_graph(self, gm, inputs, numbers):
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        meaning = {}
        for i, t in enumerate(tensors):
            for d, n in enumerate(t.shape):
                if isinstance(n, torch.SymInt):
                    meaning.setdefault(n.node.expr, ["t", i, d])
        for k, n in enumerate(inputs[len(tensors) :]):
            meaning[n.node.expr] = ["n", k]

        def expressions(values):
            return [graph.to_expr(v.node.expr if isinstance(v, torch.SymInt) else v, meaning) for v in values]

        (results,) = gm.graph.output_node().args
        results = results if isinstance(results, (list, tuple)) else [results]
        steps, outputs = [], []
        for result in results:
            if result is None:
                outputs.append(None)
                continue
            value, number = result.meta["val"], len(tensors) + len(steps)
            sizes, strides = expressions(value.shape), expressions(value.stride())
            steps.append(["alloc", number, sizes, strides, str(value.dtype).removeprefix("torch."), "default"])
            outputs.append(number)
        name = f"graph {next(_numbers)}"
        self.graphs[name] = gm
        operands = [["b", i] for i in range(len(tensors))]
        operands += [["e", ["n", k]] for k in range(len(inputs) - len(tensors))]
        operands += [["b", o] for o in outputs if o is not None]
        steps.append(["launch", 0, operands])
        kernel = Kernel(name, "", (), ())
        return Program(len(tensors), steps, outputs, [kernel])

    def prepare(self, kernel):
        gm = self.graphs[kernel.name]
        holders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        inputs = len(holders)
        written = [holders.index(n.args[0]) for n in gm.graph.nodes if n.target is torch.ops.aten.copy_.default]

        def run(*operands):
            host = [o.cpu() if isinstance(o, torch.Tensor) else o for o in operands[:inputs]]
            results = _OnHost(gm).run(*host)
            results = results if isinstance(results, (list, tuple)) else [results]
            for i in written:
                operands[i].copy_(host[i])
            for device, value in zip(operands[inputs:], [r for r in results if r is not None], strict=True):
                device.copy_(value)

        return run


@contextmanager
def installed(target):
    """Compile for ``target`` inside the block; yields it."""
    before = compiler._target
    torch.spyre.synchronize()
    try:
        compiler.install(target)
        _device.clear_eager_programs()
        _device.forget_eager_graphs()
        yield target
    finally:
        _device.finish_pending()
        compiler.install(before)
        _device.clear_eager_programs()
        _device.forget_eager_graphs()


@contextmanager
def patience(runs):
    """A graph runs ``runs`` times node by node before it is compiled."""
    _device.set_fuse_patience(runs)
    try:
        yield
    finally:
        _device.finish_pending()
        _device.set_fuse_patience(1)
