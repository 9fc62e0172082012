#!/usr/bin/env python3
"""Runs the cases of `daps bench nn` in daps and in PyTorch, taking turns, and prints the ratios.

    cargo build --release -p daps-cli && python3 bench/compare_torch.py

Makes a throw-away virtual environment with PyTorch (--python uses an interpreter that has it already). Both programs get
the same weights and inputs; outputs and gradients are compared before anything is timed. PyTorch runs eagerly in f32, in
both layouts, and its faster one counts. Medians of interleaved runs; peak memory from processes of their own.
"""

import argparse
import datetime
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
THREADS = 2
LAYOUTS = ("NCHW", "channels-last")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daps", default=str(HERE.parent / "target/release/daps"), help="the daps command")
    parser.add_argument("--python", help="an interpreter with torch, numpy and safetensors, instead of a new one")
    parser.add_argument("--pairs", type=int, default=15, help="interleaved runs behind every median")
    parser.add_argument("--only", default="gemm,conv,norm,attention,network", help="as in daps bench nn --only")
    parser.add_argument("--out", help="the Markdown file to write")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def environment(directory):
    """The interpreter of a fresh virtual environment with PyTorch."""
    import venv
    venv.create(directory, with_pip=True)
    python = str(Path(directory) / "bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "torch", "numpy", "safetensors"]
    print("installing PyTorch into a throw-away environment", file=sys.stderr)
    small = [*pip, "--index-url", "https://download.pytorch.org/whl/cpu"]
    if subprocess.run(small, stderr=subprocess.DEVNULL).returncode != 0:
        subprocess.run(pip, check=True)
    return python


class Twin:
    """One case in PyTorch, in one layout."""

    def __init__(self, directory, stem, layout):
        import torch
        from safetensors.torch import load_file
        torch.set_num_threads(THREADS)
        self.torch, self.kind = torch, stem.split("_")[0]
        self.io = load_file(Path(directory) / f"{stem}.io.safetensors")
        # Attention has no weights, and a file without tensors is not read by every version of the library.
        weights = {} if self.kind == "attention" else load_file(Path(directory) / f"{stem}.safetensors")
        last = layout == "channels-last"
        if self.kind == "conv3x3":
            c = weights["weight"].shape[0]
            self.model = torch.nn.Conv2d(c, c, 3, 1, 1)
        elif self.kind == "groupnorm32+silu":
            norm = torch.nn.GroupNorm(32, weights["weight"].shape[0])
            self.model = torch.nn.Sequential(norm, torch.nn.SiLU(inplace=False))
            weights = {f"0.{name}": value for name, value in weights.items()}
        elif self.kind == "sgemm":
            self.model = torch.nn.Linear(*weights["weight"].shape, bias=False)
        elif self.kind == "attention":
            heads = int(stem.split("_")[1].split("x")[1])
            self.model = AttentionTwin(torch, heads)
        else:
            sys.path.insert(0, str(HERE))
            from torch_adm import Adm
            config = tomllib.loads((Path(directory) / f"{stem}.toml").read_text())["network"]
            config.pop("kind")
            self.model = Adm(config)
        if self.kind != "attention":
            self.model.load_state_dict(weights)
        self.network = "noise" in self.io
        x = self.io["x"]
        if last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
            self.model = self.model.to(memory_format=torch.channels_last)
        # A layer's input asks for its gradient too; a network is trained for its weights.
        self.x = x
        self.dy = self.io.get("dy")
        if self.dy is not None and last:
            self.dy = self.dy.contiguous(memory_format=torch.channels_last)

    def call(self, x):
        return self.model(x, self.io["noise"]) if self.network else self.model(x)

    def forward(self):
        with self.torch.inference_mode():
            return self.call(self.x)

    def bf16(self):
        with self.torch.inference_mode(), self.torch.autocast("cpu", dtype=self.torch.bfloat16):
            return self.call(self.x)

    def backward(self):
        for parameter in self.model.parameters():
            parameter.grad = None
        x = self.x.detach().requires_grad_(not self.network)
        self.call(x).backward(self.dy)
        return x.grad

    def gradients(self):
        return {f"d.{name.removeprefix('0.')}": p.grad for name, p in self.model.named_parameters()}


class AttentionTwin:
    def __init__(self, torch, heads):
        self.torch, self.heads = torch, heads

    def __call__(self, x):
        n, c, height, width = x.shape
        dim = c // 3 // self.heads
        # Views only: the tokens of a channels-last map lie as they should.
        q, k, v = x.permute(0, 2, 3, 1).reshape(n, height * width, self.heads, 3, dim).unbind(3)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = self.torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(n, height, width, c // 3).permute(0, 3, 1, 2)

    def parameters(self):
        return []

    named_parameters = parameters

    def to(self, **_):
        return self


class Daps:
    """One case in daps, in a process that runs it on request."""

    def __init__(self, command, name):
        env = {**os.environ, "RAYON_NUM_THREADS": str(THREADS)}
        self.process = subprocess.Popen([command, "bench", "nn", "--step", "--only", name], env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1)
        assert self.process.stdout.readline().strip() == "ready"

    def run(self, what, repeats):
        self.process.stdin.write(f"{what} {repeats}\n")
        self.process.stdin.flush()
        ms, mib = self.process.stdout.readline().split()
        return float(ms), float(mib)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(run, repeats):
    """Mean milliseconds after one run that is not counted, as daps does it."""
    run()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) * 1e3 / repeats


def agree(twin, name):
    """Largest relative differences of output and gradients; refuses to go on where they are not small."""
    def error(got, expected):
        return float((got - expected).abs().max() / expected.abs().max())
    found = {}
    if "y" in twin.io:
        found["output"] = error(twin.forward(), twin.io["y"])
    gradients = [key for key in twin.io if key.startswith("d.")]
    if gradients:
        x_gradient = twin.backward()
        ours = {**twin.gradients(), **({} if x_gradient is None else {"d.x": x_gradient})}
        # A gradient that is zero by symmetry (a bias before a norm) has no scale of its own.
        largest = max(float(twin.io[key].abs().max()) for key in gradients)
        found["gradients"] = max(
            float((ours[key] - twin.io[key]).abs().max() / max(float(twin.io[key].abs().max()), 1e-3 * largest))
            for key in gradients)
    for what, value in found.items():
        limit = 1e-4 if what == "output" else 2e-3
        if not value <= limit:
            sys.exit(f"{name}: {what} of daps and PyTorch differ by {value:.2e}, more than {limit:.0e}")
    return found


def compare(args, directory, stem, name):
    """Medians in milliseconds of one case: {pass: {who: ms}}, and the agreement."""
    twins = {layout: Twin(directory, stem, layout) for layout in LAYOUTS}
    agreement = agree(twins["NCHW"], name)
    daps = Daps(args.daps, name)
    passes = ["forward"] + ["backward"] * (name != "ffhq256" and "dy" in twins["NCHW"].io)
    result = {}
    for what in passes:
        # A turn takes about a tenth of a second, so that caches and threads are as in a network that runs on and on.
        repeats = max(1, min(50, round(100 / timed(getattr(twins["NCHW"], what), 1))))
        runs = {"daps": lambda: daps.run(what, repeats)[0]}
        for layout, twin in twins.items():
            runs[layout] = lambda twin=twin: timed(getattr(twin, what), repeats)
            if name == "ffhq256":
                runs[f"bf16 {layout}"] = lambda twin=twin: timed(twin.bf16, repeats)
        times = {who: [] for who in runs}
        for turn in range(-1, args.pairs):
            for who, run in runs.items():
                time.sleep(0.03)  # idle threads stop spinning
                ms = run()
                if turn >= 0:
                    times[who].append(ms)
        result[what] = {who: statistics.median(values) for who, values in times.items()}
    daps.close()
    return result, agreement


def memory(args, directory, stem, name, what, layout):
    """Peak MiB of processes that only run this pass: daps, PyTorch, and PyTorch after its import."""
    daps = Daps(args.daps, name)
    for _ in range(3):
        ours = daps.run(what, 1)[1]
    daps.close()
    child = [sys.executable, __file__, "--inside", directory, "--memory", stem, what, layout]
    theirs, empty = subprocess.run(child, check=True, capture_output=True, text=True).stdout.split()
    return ours, float(theirs), float(empty)


def peak():
    """As daps measures itself; what getrusage says of a child includes the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1024


def memory_child(args):
    stem, what, layout = args.memory
    import torch
    torch.set_num_threads(THREADS)
    empty = peak()
    twin = Twin(args.inside, stem, layout)
    for _ in range(3):
        getattr(twin, what)()
    print(peak(), empty)


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return f"{model or platform.processor()}, {THREADS} threads"


def inside(args):
    import torch
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    directory = args.inside
    subprocess.run([args.daps, "bench", "nn", "--only", args.only, "--export", directory], check=True)
    stems = sorted(p.name.removesuffix(".io.safetensors") for p in Path(directory).glob("*.io.safetensors"))
    order = ["sgemm", "conv3x3", "groupnorm32+silu", "attention", "unet64", "ffhq256"]
    stems.sort(key=lambda stem: (order.index(stem.split("_")[0]), stem))
    rows, memories, ratios = [], [], {}
    for stem in stems:
        name = stem.replace("_", " ")
        result, agreement = compare(args, directory, stem, name)
        for what, times in result.items():
            best = min(LAYOUTS, key=times.get)
            ratio = times[best] / times["daps"]
            ratios.setdefault((stem.split("_")[0], what), []).append(ratio)
            differs = agreement.get("output" if what == "forward" else "gradients")
            label = "forward + backward" if what == "backward" else what
            rows.append((name, label, f"{times['daps']:.2f}", f"{times[best]:.2f}", best, f"{ratio:.2f}",
                         "" if differs is None else f"{differs:.0e}"))
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
            fastest = [who for who in times if who.startswith("bf16")]
            if fastest:
                best16 = min(fastest, key=times.get)
                rows.append((name, "forward, PyTorch in bf16 autocast", f"{times['daps']:.2f}",
                             f"{times[best16]:.2f}", best16.removeprefix("bf16 "),
                             f"{times[best16] / times['daps']:.2f}", ""))
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
            if stem in ("ffhq256", "unet64"):
                memories.append((name, label, *memory(args, directory, stem, name, what, best)))
    lines = [f"# Networks beside PyTorch, {datetime.date.today()}", "",
             f"`python3 bench/compare_torch.py` on {machine()}; PyTorch {torch.__version__}, eager, f32, the faster of "
             f"its two layouts; medians of {args.pairs} interleaved runs. Above 1, daps is faster.", "",
             "| case | pass | daps ms | PyTorch ms | PyTorch's layout | ratio | largest relative difference |",
             "|---|---|--:|--:|---|--:|--:|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    means = [f"{kind} {'forward + backward' if what == 'backward' else what}: "
             f"{math.exp(statistics.fmean(map(math.log, values))):.2f} (smallest {min(values):.2f})"
             for (kind, what), values in ratios.items() if len(values) > 1 and kind != "sgemm"]
    lines += ["", "Geometric means: " + "; ".join(means) + "." if means else ""]
    if memories:
        lines += ["", "| peak memory | pass | daps MiB | PyTorch MiB | of which import torch |", "|---|---|--:|--:|--:|"]
        lines += [f"| {n} | {w} | {a:.0f} | {b:.0f} | {c:.0f} |" for n, w, a, b, c in memories]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        Path(args.out).write_text(text)


def main():
    args = arguments()
    if args.memory:
        return memory_child(args)
    if args.inside:
        return inside(args)
    with tempfile.TemporaryDirectory() as scratch:
        python = args.python or environment(Path(scratch) / "venv")
        numbers = Path(scratch) / "numbers"
        forward = [python, __file__, "--inside", str(numbers), "--daps", args.daps, "--pairs", str(args.pairs),
                   "--only", args.only, *(["--out", args.out] if args.out else [])]
        sys.exit(subprocess.run(forward).returncode)


if __name__ == "__main__":
    main()
