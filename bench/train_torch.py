#!/usr/bin/env python3
"""Training steps per second: `daps train` beside a PyTorch eager loop of the same network, batch, loss and optimiser.

    cargo build --release -p daps-cli
    python3 bench/train_torch.py --out bench/results/train.md

Makes a throw-away virtual environment with PyTorch from PyPI (or uses --venv DIR, made where it does not exist). Both
sides use two threads and run one after the other, --pairs times; the ratio of each pair and their median are printed.
Before that, the PyTorch network loads the bundled weights under their own names, strictly, and must denoise held-out
noise of the same images as well as the table in the weights' file says: the two networks are the same function.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["torch", "numpy", "safetensors", "pillow"]


def in_environment(folder):
    """Runs this script again in an environment that has PyTorch."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}", flush=True)
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return subprocess.run([python, __file__, *sys.argv[1:], "--inside"]).returncode


def unet(config):
    """The ADM U-Net, with the parameter names of the public checkpoints."""
    import math

    import torch
    from torch import nn
    from torch.nn import functional as F

    base, groups = config["model_channels"], config.get("norm_groups", 32)
    width = 4 * base

    class Res(nn.Module):
        def __init__(self, cin, cout):
            super().__init__()
            self.in_layers = nn.Sequential(nn.GroupNorm(groups, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
            self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * cout))
            self.out_layers = nn.Sequential(
                nn.GroupNorm(groups, cout), nn.SiLU(), nn.Identity(), nn.Conv2d(cout, cout, 3, padding=1))
            self.skip_connection = nn.Identity() if cin == cout else nn.Conv2d(cin, cout, 1)

        def forward(self, x, emb):
            h = self.in_layers(x)
            scale, shift = self.emb_layers(emb)[:, :, None, None].chunk(2, dim=1)
            h = self.out_layers[0](h) * (1 + scale) + shift
            return self.skip_connection(x) + self.out_layers[1:](h)

    class Attention(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.heads = c // config["num_head_channels"]
            self.norm, self.qkv, self.proj_out = nn.GroupNorm(groups, c), nn.Conv1d(c, 3 * c, 1), nn.Conv1d(c, c, 1)

        def forward(self, x, _):
            b, c, h, w = x.shape
            x = x.reshape(b, c, h * w)
            q, k, v = self.qkv(self.norm(x)).reshape(b * self.heads, -1, h * w).chunk(3, dim=1)
            mixed = F.scaled_dot_product_attention(q.mT[:, None], k.mT[:, None], v.mT[:, None])[:, 0].mT
            return (x + self.proj_out(mixed.reshape(b, c, h * w))).reshape(b, c, h, w)

    class Down(nn.Module):
        def forward(self, x, _):
            return F.avg_pool2d(x, 2)

    class Up(nn.Module):
        def forward(self, x, _):
            return F.interpolate(x, scale_factor=2, mode="nearest")

    class Conv(nn.Conv2d):
        def forward(self, x, _):
            return super().forward(x)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            mults, side = config["channel_mult"], config["image_size"]
            attends = lambda level: side >> level in config["attention_resolutions"]
            c = base * mults[0]
            self.time_embed = nn.Sequential(nn.Linear(base, width), nn.SiLU(), nn.Linear(width, width))
            blocks, skips = [[Conv(config["channels"], c, 3, padding=1)]], [c]
            for level, mult in enumerate(mults):
                for _ in range(config["num_res_blocks"]):
                    block, c = [Res(c, mult * base)], mult * base
                    blocks.append(block + ([Attention(c)] if attends(level) else []))
                    skips.append(c)
                if level + 1 < len(mults):
                    blocks.append([Down()])
                    skips.append(c)
            self.input_blocks = nn.ModuleList(map(nn.ModuleList, blocks))
            self.middle_block = nn.ModuleList([Res(c, c), Attention(c), Res(c, c)])
            blocks = []
            for level, mult in reversed(list(enumerate(mults))):
                for i in range(config["num_res_blocks"] + 1):
                    block, c = [Res(c + skips.pop(), mult * base)], mult * base
                    block += [Attention(c)] if attends(level) else []
                    block += [Up()] if level > 0 and i == config["num_res_blocks"] else []
                    blocks.append(block)
            self.output_blocks = nn.ModuleList(map(nn.ModuleList, blocks))
            self.out = nn.Sequential(
                nn.GroupNorm(groups, c), nn.SiLU(), nn.Conv2d(c, config["channels"], 3, padding=1))

        def forward(self, x, noise):
            half = base // 2
            angles = noise[:, None] * torch.exp(-math.log(10000) * torch.arange(half) / half)
            emb = self.time_embed(torch.cat([angles.cos(), angles.sin()], dim=1))
            skips = []
            for block in self.input_blocks:
                for layer in block:
                    x = layer(x, emb)
                skips.append(x)
            for layer in self.middle_block:
                x = layer(x, emb)
            for block in self.output_blocks:
                x = torch.cat([x, skips.pop()], dim=1)
                for layer in block:
                    x = layer(x, emb)
            return self.out(x)

    return UNet()


def denoise(net, x, sigma, sigma_data, patch):
    """EDM's D(x, σ), with the patches of the configuration."""
    from torch.nn.functional import pixel_shuffle, pixel_unshuffle

    s = sigma[:, None, None, None]
    total = (s**2 + sigma_data**2)
    raw = net(pixel_unshuffle(x / total.sqrt(), patch), sigma.log() / 4)
    return sigma_data**2 / total * x + s * sigma_data / total.sqrt() * pixel_shuffle(raw, patch)


def load_images(path):
    """All pictures of a tar, in the order of their names, as bytes N x C x H x W."""
    import io
    import tarfile

    import numpy as np
    import torch
    from PIL import Image

    with tarfile.open(path) as archive:
        members = sorted((m for m in archive.getmembers() if m.isfile()), key=lambda m: m.name)
        pictures = [np.asarray(Image.open(io.BytesIO(archive.extractfile(m).read()))) for m in members]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def check_parity(config, images, prior):
    """The bundled weights denoise in PyTorch as well as their own table says."""
    import torch
    from safetensors import safe_open

    with safe_open(prior, "pt") as file:
        meta = file.metadata()
        weights = {name: file.get_tensor(name).float() for name in file.keys()}
    sigma_data = tomllib.loads(meta["daps.config"])["preconditioning"]["sigma_data"]
    table = json.loads(meta["daps.spread"])
    net = unet(config["network"])
    net.load_state_dict(weights, strict=True)
    x0 = images[-config["data"]["held_out"]:].float() / 127.5 - 1
    worst = 0.0
    with torch.no_grad():
        for level in (0.1, 0.5, 2.0):
            noisy = x0 + level * torch.randn_like(x0)
            sigma = torch.full((len(x0),), level)
            r = (denoise(net, noisy, sigma, sigma_data, config["patch"]) - x0).square().mean().sqrt().item()
            ours = table["r"][table["sigma"].index(level)]
            worst = max(worst, abs(r / ours - 1))
    # The noise is another one: with 128 images of 12,288 numbers r varies by less than one per cent.
    if worst > 0.01:
        sys.exit(f"error: the PyTorch network differs from the bundled one: r is off by {worst:.1%}")
    return worst


def torch_rate(config, images, steps, channels_last):
    """Images per second of an eager loop: AdamW, limit on the gradient's norm, averaged weights."""
    import torch

    torch.manual_seed(0)
    net, patch, batch = unet(config["network"]), config["patch"], config["batch"]
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    parameters = list(net.parameters())
    average = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=4e-4, weight_decay=0.0)
    sigma_data, times = 0.5, []
    for _ in range(steps + 3):
        start = time.perf_counter()
        x0 = images[torch.randint(len(images), (batch,))].float() / 127.5 - 1
        x0 = torch.where(torch.rand(batch, 1, 1, 1) < 0.5, x0.flip(3), x0)
        sigma = (config["loss"]["p_mean"] + config["loss"]["p_std"] * torch.randn(batch)).exp()
        s = sigma[:, None, None, None]
        weight = (s**2 + sigma_data**2) / (s * sigma_data) ** 2
        noisy = x0 + s * torch.randn_like(x0)
        if channels_last:
            noisy = noisy.to(memory_format=torch.channels_last)
        loss = (weight * (denoise(net, noisy, sigma, sigma_data, patch) - x0) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, parameters, 0.001)
        times.append(time.perf_counter() - start)
    return batch * steps / sum(times[3:])


def daps_rate(daps, config_file, images):
    """Images per second of `daps train`, its first steps included."""
    with tempfile.TemporaryDirectory() as out:
        command = [daps, "train", "--config", config_file, "--out", out, "--until", str(images), "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True,
                              env={**os.environ, "RAYON_NUM_THREADS": "2"})
        return json.loads(done.stdout)["images_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daps", default=str(ROOT / "target/release/daps"))
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "priors/faces/train.toml")
    parser.add_argument("--prior", type=pathlib.Path, default=ROOT / "priors/faces/faces.safetensors")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, help="a Markdown file to write")
    parser.add_argument("--venv", type=pathlib.Path, help="the environment with PyTorch")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        if args.venv:
            sys.exit(in_environment(args.venv))
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(in_environment(pathlib.Path(folder) / "venv"))

    import torch

    torch.set_num_threads(2)
    config = tomllib.loads(args.config.read_text())
    images = load_images(args.config.parent / config["data"]["source"])
    lines = []

    def tell(line):
        print(line, flush=True)
        lines.append(line)

    tell(f"# Training beside PyTorch, {time.strftime('%Y-%m-%d')}\n")
    tell(f"`bench/train_torch.py`, {args.steps} steps of {config['batch']} images a side and pair, two threads, "
         f"PyTorch {torch.__version__} eager, {platform.machine()}, {os.cpu_count()} cores.\n")
    if args.prior.exists():
        worst = check_parity(config, images, args.prior)
        tell(f"The same network: r(σ) of the bundled weights in PyTorch is within {worst:.2%} of their table.\n")
    else:
        tell("The bundled weights are not there: whether both run the same function was not checked.\n")
    layouts = {last: torch_rate(config, images, 4, last) for last in (False, True)}
    last = max(layouts, key=layouts.get)
    tell(f"PyTorch runs {'channels-last' if last else 'NCHW'}, its faster layout here "
         f"({layouts[True]:.1f} against {layouts[False]:.1f} images/s).\n")
    tell("| pair | daps train, images/s | PyTorch, images/s | ratio |\n|---|---|---|---|")
    ratios = []
    for pair in range(args.pairs):
        ours = daps_rate(args.daps, args.config, args.steps * config["batch"])
        theirs = torch_rate(config, images, args.steps, last)
        ratios.append(ours / theirs)
        tell(f"| {pair + 1} | {ours:.1f} | {theirs:.1f} | {ratios[-1]:.2f} |")
    tell(f"\nMedian ratio: **{statistics.median(ratios):.2f}**.")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
