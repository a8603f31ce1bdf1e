"""PyTorch's own operator samples for the factory, view and copy families, run by its generic device tests.

Every sample runs on the CPU and on the device; results must agree in value, and in sizes and strides where
the values are undefined. Samples that ask for float64 are left out: the device refuses it by design.
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
new_empty new_empty_strided empty_strided empty_permuted arange eye scalar_tensor linspace"""

VIEWS = """view view_as reshape reshape_as transpose t permute expand expand_as narrow select unfold squeeze
unsqueeze flatten unflatten ravel movedim swapaxes diagonal split split_with_sizes chunk unbind hsplit
vsplit dsplit adjoint mT T H atleast_1d atleast_2d atleast_3d broadcast_to view_copy narrow_copy expand_copy
squeeze_copy unsqueeze_copy permute_copy transpose_copy t_copy unbind_copy alias_copy diagonal_copy
unfold_copy unsafe_split unsafe_chunk __getitem__"""

COPIES = """clone contiguous float int long short char byte bool fill zero resize_ resize_as_ item
select_scatter slice_scatter diagonal_scatter cat stack hstack vstack dstack column_stack flip rot90 roll
repeat tile index_select gather take masked_select index_put masked_fill where tril triu nonzero"""

FAMILIES = set(f"{FACTORIES} {VIEWS} {COPIES}".split())
UNDEFINED = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}
UNDEFINED |= {"resize_", "resize_as_"}
SAMPLES = 15  # per operator and dtype


def to_device(value, device):
    return tree_map_only(torch.Tensor, lambda t: t.to(device), value)


class TestFamilies(TestCase):
    @ops(
        [op for op in op_db if op.name in FAMILIES],
        allowed_dtypes=(torch.float32, torch.int64),
    )
    def test_agrees_with_the_cpu(self, device, dtype, op):
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
            if torch.float64 in sample.kwargs.values():
                continue
            kwargs = {k: ("cpu" if k == "device" else v) for k, v in sample.kwargs.items()}
            expected = op(sample.input, *sample.args, **kwargs)
            moved = to_device((sample.input, sample.args, kwargs), device)
            if "device" in kwargs or not any(isinstance(x, torch.Tensor) for x in tree_leaves(moved)):
                moved[2]["device"] = device
            result = op(moved[0], *moved[1], **moved[2])
            if op.name in UNDEFINED:
                self.assertEqual(result.shape, expected.shape)
                self.assertEqual(result.stride(), expected.stride())
            else:
                self.assertEqual(to_device(result, "cpu"), expected, exact_device=False)


instantiate_device_type_tests(TestFamilies, globals(), only_for="privateuse1")
