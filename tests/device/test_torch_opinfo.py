"""PyTorch's own operator samples for the factory, view and copy families, run by its generic device tests.

Every sample runs on the CPU and on the device; results must agree in value, and in sizes and strides where
the values are undefined. A sample whose result has a dtype without a device format must be refused, and only such a
sample. What is not run at all has a row in NOT_RUN.
"""

import itertools

import pytest
import torch

pytest.importorskip("expecttest")  # a requirement of torch's test utilities

from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_leaves, tree_map_only

FACTORIES = """zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full
new_empty new_empty_strided empty_strided empty_permuted arange eye scalar_tensor linspace logspace rand_like randn
randn_like randint randint_like"""

VIEWS = """view view_as reshape reshape_as transpose t permute expand expand_as narrow select unfold squeeze
unsqueeze flatten unflatten ravel movedim diagonal split split_with_sizes chunk unbind hsplit
vsplit dsplit tensor_split slice as_strided broadcast_tensors
meshgrid positive mT T H atleast_1d atleast_2d atleast_3d broadcast_to view_copy narrow_copy expand_copy
squeeze_copy unsqueeze_copy permute_copy transpose_copy t_copy unbind_copy alias_copy diagonal_copy
unfold_copy as_strided_copy split_with_sizes_copy unsafe_split unsafe_chunk __getitem__ resolve_conj resolve_neg"""

COPIES = """clone contiguous to float int long short char byte bool double cfloat cdouble chalf fill resize_
resize_as_ item select_scatter slice_scatter diagonal_scatter as_strided_scatter scatter scatter_add masked_scatter
put index_copy index_fill index_add block_diag diag diag_embed diagflat cat stack hstack vstack dstack column_stack
flip rot90 roll repeat tile index_select gather take masked_select index_put masked_fill where tril triu nonzero"""

FAMILIES = set(f"{FACTORIES} {VIEWS} {COPIES}".split())
UNDEFINED = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}
UNDEFINED |= {"resize_", "resize_as_"}
SAMPLES = 15  # per operator and dtype
REFUSED_DTYPES = {torch.float64, torch.complex32, torch.complex64, torch.complex128}

NOT_RUN = {
    "as_strided.partial_views": ("a copy to the device holds the view, not the storage around it", "nothing"),
    "half": ("both sides round, to different formats; test_transfer_values.py has the values", "IEEE numerics"),
    "bfloat16": ("both sides round, to different formats; test_transfer_values.py has the values", "IEEE numerics"),
    "real": ("only complex samples would show anything", "a device format for complex numbers"),
    "imag": ("takes complex tensors only", "a device format for complex numbers"),
    "view_as_real": ("takes complex tensors only", "a device format for complex numbers"),
    "view_as_complex": ("gives complex tensors only", "a device format for complex numbers"),
}
"""Operators of the families that are left out: the reason, and what would let them run."""


ON_THE_HOST = {"tensor_split"}
"""Operators whose tensor arguments PyTorch wants on the CPU."""


def to_device(value, device):
    return tree_map_only(torch.Tensor, lambda t: t.to(device), value)


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def moved_args(op, args, device):
    """The arguments on the device; where they name the CPU, they name the device."""
    args = tree_map_only(str, lambda x: device if x == "cpu" else x, args)
    args = tree_map_only(torch.device, lambda _: torch.device(device), args)
    return args if op.name in ON_THE_HOST else to_device(args, device)


class TestFamilies(TestCase):
    @ops(
        [op for op in op_db if op.name in FAMILIES and full_name(op) not in NOT_RUN],
        allowed_dtypes=(torch.float32, torch.int64),
    )
    def test_agrees_with_the_cpu(self, device, dtype, op):
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
            kwargs = {k: ("cpu" if k == "device" else v) for k, v in sample.kwargs.items()}
            torch.manual_seed(0)
            expected = op(sample.input, *sample.args, **kwargs)
            moved = to_device(sample.input, device), *moved_args(op, (sample.args, kwargs), device)
            if "device" in kwargs or not any(isinstance(x, torch.Tensor) for x in tree_leaves(moved)):
                moved[2]["device"] = device
            torch.manual_seed(0)
            if REFUSED_DTYPES & {t.dtype for t in tree_leaves(expected) if isinstance(t, torch.Tensor)}:
                with self.assertRaisesRegex(RuntimeError, "does not support dtype"):
                    op(moved[0], *moved[1], **moved[2])
                continue
            result = op(moved[0], *moved[1], **moved[2])
            if op.name in UNDEFINED:
                self.assertEqual(result.shape, expected.shape)
                self.assertEqual(result.stride(), expected.stride())
            else:
                self.assertEqual(to_device(result, "cpu"), expected, exact_device=False)


def test_the_lists_name_operators_of_torch():
    names = {op.name for op in op_db}
    assert names >= FAMILIES and {full_name(op) for op in op_db} >= set(NOT_RUN) and not FAMILIES & set(NOT_RUN)


instantiate_device_type_tests(TestFamilies, globals(), only_for="privateuse1")
