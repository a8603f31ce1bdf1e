"""What each optimisation is worth: modelled time of models with it off and on.

Every model is launched once and the clock times its launches; values are not computed, since they change none of the
times. Rows: everything on, everything off, and everything on but one. An optimisation pays where leaving it out costs
time; nothing may be faster without one ("harms" is marked). Weights are random, shapes those of the published models
where named.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torch_loom import _device, arch
from torch_loom.inductor import config
from torch_loom.profiler import launch_rows, recorded_launches

SWITCHES = {
    "work division": "work_division",
    "row epilogues": "fusion",
    "chains (LX)": "chains",
    "joint products": "joint_products",
    "ring sums": "ring_sums",
    "layout choice": "layout_choice",
    "residency (LX)": "residency",
}
# Modelled time may differ this much for no other reason than where transfers meet.
NOISE = 0.01


@dataclass(frozen=True)
class Model:
    """A model by name: builds module and inputs, both in half precision on the CPU."""

    name: str
    build: Callable[[], tuple[torch.nn.Module, list[torch.Tensor]]]


def minilm(batch: int, tokens: int) -> Callable[[], tuple[torch.nn.Module, list[torch.Tensor]]]:
    """all-MiniLM-L6-v2 on sentences of equal length."""

    def build() -> tuple[torch.nn.Module, list[torch.Tensor]]:
        from torch_loom.integrations.huggingface import load_minilm

        mask = torch.ones(batch, tokens, dtype=torch.int64)
        return load_minilm().encoder, [torch.randint(1000, 30000, (batch, tokens)), mask]

    return build


def hidden_states(name: str, settings: dict[str, Any], batch: int, tokens: int) -> Callable[[], Any]:
    """Layers of a Transformers model from hidden states on (``inputs_embeds``)."""

    def build() -> tuple[torch.nn.Module, list[torch.Tensor]]:
        import transformers

        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(vocab_size=64, **settings))
        return _Layers(model), [torch.randn(batch, tokens, model.config.hidden_size)]

    return build


class _Layers(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(inputs_embeds=states, **_without_cache(self.model)).last_hidden_state
        return out


def _without_cache(model: Any) -> dict[str, Any]:
    return {"use_cache": False} if hasattr(model.config, "use_cache") and model.config.model_type != "bert" else {}


def vit_block() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """One layer of ViT-B/16 on 4 images: 197 tokens, an ugly number."""
    import transformers

    settings = transformers.ViTConfig(num_hidden_layers=1)
    model = transformers.ViTModel(settings, add_pooling_layer=False)
    return model.layers[0], [torch.randn(4, 197, settings.hidden_size)]


class _Residual(torch.nn.Module):
    """x plus two convolutions of x, each with what stands before and after it."""

    def __init__(self, inside: torch.nn.Module, after: torch.nn.Module) -> None:
        super().__init__()
        self.inside, self.after = inside, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.after(x + self.inside(x))
        return out


def resnet_block() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """The first block of ResNet-18 on one image."""
    conv = lambda: torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)  # noqa: E731
    norm = lambda: torch.nn.BatchNorm2d(64)  # noqa: E731
    inside = torch.nn.Sequential(conv(), norm(), torch.nn.ReLU(), conv(), norm())
    return _Residual(inside, torch.nn.ReLU()), [torch.randn(1, 64, 56, 56)]


def lenet() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """LeNet-5 with ReLU on 8 digits: filters without padding, and pools."""
    part = lambda a, b: (torch.nn.Conv2d(a, b, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2))  # noqa: E731
    head = (torch.nn.Flatten(), torch.nn.Linear(256, 120), torch.nn.ReLU(), torch.nn.Linear(120, 10))
    return torch.nn.Sequential(*part(1, 6), *part(6, 16), *head), [torch.randn(8, 1, 28, 28)]


def unet_block() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A block of a diffusion UNet: group norm, SiLU and convolution, twice."""
    part = lambda: (torch.nn.GroupNorm(32, 128), torch.nn.SiLU(), torch.nn.Conv2d(128, 128, 3, padding=1))  # noqa: E731
    return _Residual(torch.nn.Sequential(*part(), *part()), torch.nn.Identity()), [torch.randn(2, 128, 32, 32)]


def whisper_stem() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """The convolutions before the encoder of Whisper tiny on 30 seconds."""
    first, second = torch.nn.Conv1d(80, 384, 3, padding=1), torch.nn.Conv1d(384, 384, 3, stride=2, padding=1)
    return torch.nn.Sequential(first, torch.nn.GELU(), second, torch.nn.GELU()), [torch.randn(1, 80, 3000)]


LLAMA = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
MODELS = (
    Model("MiniLM 32 x 128", minilm(32, 128)),
    Model("MiniLM 1 x 128", minilm(1, 128)),
    Model("BERT-base layer 8 x 128", hidden_states("Bert", {"num_hidden_layers": 1}, 8, 128)),
    Model("BERT-base layer 32 x 512", hidden_states("Bert", {"num_hidden_layers": 1}, 32, 512)),
    Model("GPT-2 layer 2 x 256", hidden_states("GPT2", {"n_layer": 1}, 2, 256)),
    Model("Llama layer, hidden 512, 4 x 128", hidden_states("Llama", LLAMA, 4, 128)),
    Model("Llama layer, one token", hidden_states("Llama", LLAMA, 1, 1)),
    Model("ViT-B layer 4 x 197", vit_block),
    Model("LeNet, 8 x 28 x 28", lenet),
    Model("ResNet-18 block, 56 x 56", resnet_block),
    Model("UNet block 2 x 128 x 32 x 32", unet_block),
    Model("Whisper tiny stem, 30 s", whisper_stem),
)


@dataclass(frozen=True)
class Outcome:
    """Modelled microseconds of one forward, launches, megabytes of DDR traffic, and, of the buffers between kernels,
    the part of the bytes read that came from LX."""

    us: float
    launches: int
    megabytes: float
    hit: float


def measure(model: Model, off: tuple[str, ...]) -> Outcome:
    """One forward with some switches off."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, inputs = model.build()
    module = module.half().eval().to("spyre")
    moved = [(x.half() if x.is_floating_point() else x).to("spyre") for x in inputs]
    with torch.no_grad(), contextlib.ExitStack() as stack:
        if off:
            stack.enter_context(config.patch(dict.fromkeys(off, False)))
        run = torch.compile(module, dynamic=False)
        run(*moved)
        with recorded_launches() as records:
            run(*moved)
        torch.accelerator.synchronize()
        rows = launch_rows(records, arch.load("spyre"))
    near, far = (sum(r.between_bytes[f"{where} read"] for r in rows) for where in ("LX", "DDR"))
    return Outcome(
        sum(r.modelled_us for r in rows),
        len(rows),
        sum(r.ddr_bytes for r in rows) / 1e6,
        near / max(near + far, 1),
    )


def main() -> None:
    """Measure the models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="models whose name contains this text")
    options = parser.parse_args()
    _device.set_timing_only(True)
    table = Table(title="modelled time of one forward")
    for column in ("", "us", "x all on", "launches", "DDR MB", "LX hit", ""):
        table.add_column(column, justify="right" if column else "left")
    for model in (m for m in MODELS if options.only in m.name):
        print(model.name, file=sys.stderr)
        every = tuple(SWITCHES.values())
        best = measure(model, ())
        ways = {"all on": best, "all off": measure(model, every)}
        ways |= {f"without {title}": measure(model, (switch,)) for title, switch in SWITCHES.items()}
        table.add_section()
        for title, found in ways.items():
            factor = found.us / best.us
            verdict = (
                "" if title == "all on" else "harms" if factor < 1 - NOISE else "pays" if factor > 1 + NOISE else "-"
            )
            name = model.name if title == "all on" else f"  {title}"
            figures = (f"{found.us:.1f}", f"{factor:.2f}", str(found.launches), f"{found.megabytes:.1f}")
            table.add_row(name, *figures, f"{found.hit:.0%}", verdict)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
