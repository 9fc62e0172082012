"""Makes edm_*.safetensors: EDM's U-Nets on random weights, run by the independent PyTorch code of the deepinv package.

    python3 -m venv /tmp/edm && /tmp/edm/bin/pip install torch numpy safetensors
    /tmp/edm/bin/pip download --no-deps deepinv==0.5.0 -d /tmp/edm/deepinv
    (cd /tmp/edm/deepinv && python3 -m zipfile -e deepinv-*.whl .)
    /tmp/edm/bin/python tests/golden/make_edm.py /tmp/edm/deepinv

Each file holds `weights.*` (rounded to f16), an input `x`, noise labels `noise`, perhaps `classes`, the raw output `out`,
and `vjp`, the gradient of the sum of `v * out` in `x`; the network configuration is in the metadata.
"""

import inspect
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent


def import_models(root):
    """The two model files alone: the package's own start-up imports much that is not needed here."""
    for name in ["deepinv", "deepinv.models", "deepinv.utils"]:
        module = types.ModuleType(name)
        module.__path__ = [str(Path(root, *name.split(".")))]
        sys.modules[name] = module
    io = types.ModuleType("deepinv.utils.io")
    io.DownloadError = OSError
    sys.modules["deepinv.utils.io"] = io
    from deepinv.models import guided_diffusion, ncsnpp, utils

    # The package fixes 32 groups, which narrow networks do not have; EDM takes min(32, channels / 4).
    def group_norm(num_channels, num_groups=32, eps=1e-5, device=None):
        return torch.nn.GroupNorm(min(num_groups, num_channels // 4), num_channels, eps)

    for module in [guided_diffusion, ncsnpp, utils]:
        module.GroupNorm = group_norm
    return guided_diffusion, ncsnpp


def with_skips(ncsnpp):
    """The package can build skip encoders and decoders, but offers no argument for them."""
    source = inspect.getsource(ncsnpp.NCSNpp)
    for part in ["encoder_type", "decoder_type"]:
        source = source.replace(f'{part} = "standard"', f'{part} = "skip"')
    scope = dict(vars(ncsnpp))
    # The closure cell of `super()` needs the class to be made anew.
    exec(source, scope)
    return scope["NCSNpp"]


def toml(kind, settings):
    def value(v):
        return f'"{v}"' if isinstance(v, str) else str(list(v) if isinstance(v, tuple) else v)

    lines = ["[network]", f'kind = "{kind}"'] + [f"{k} = {value(v)}" for k, v in settings.items()]
    return "\n".join(lines + ["", "[preconditioning]", 'kind = "edm"', ""])


def make(name, kind, model, settings, labels=0):
    torch.manual_seed(7)
    model = model.eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            fan_in = p[0].numel() if p.ndim > 1 else 1
            deviation = 0.1 if p.ndim == 1 else (1.0 / fan_in) ** 0.5
            values = torch.randn(p.shape) * deviation
            if "norm" in key and key.endswith("weight"):
                values = values + 1
            p.copy_(values)
        for value in model.state_dict().values():
            value.copy_(value.half().float())
    side = settings["image_size"]
    x = torch.randn(2, settings["channels"], side, side, requires_grad=True)
    noise, v = torch.tensor([-0.7, 0.4]), torch.randn(2, settings["channels"], side, side)
    tensors = {f"weights.{k}": t.half().contiguous() for k, t in model.state_dict().items()}
    classes = None
    if labels:
        tensors["classes"] = torch.tensor([1, labels - 1])
        classes = torch.nn.functional.one_hot(tensors["classes"], labels).float()
    out = model.forward_unet(x, noise, class_labels=classes)
    (vjp,) = torch.autograd.grad((out * v).sum(), x)
    tensors |= {"x": x.detach(), "noise": noise, "v": v, "out": out.detach().contiguous(), "vjp": vjp}
    path = HERE / f"edm_{name}.safetensors"
    save_file(tensors, path, metadata={"daps.config": toml(kind, settings)})
    print(path.name, path.stat().st_size, "bytes, largest output", float(out.detach().abs().max()))


def main(root):
    guided_diffusion, ncsnpp = import_models(root)
    tiny = dict(model_channels=8, channel_mult=(1, 2), num_blocks=1, attn_resolutions=(8,))
    base = dict(image_size=16, channels=3, label_dim=0, augment_dim=9, **tiny)
    arguments = dict(img_resolution=16, pretrained=None, **tiny)

    make("ddpmpp", "song", ncsnpp.NCSNpp(model_type="ddpm", **arguments), base)
    ncsn = dict(embedding_type="fourier", channel_mult_noise=2, encoder_type="residual", resample_filter=(1.0, 3.0, 3.0, 1.0))
    make("ncsnpp", "song", ncsnpp.NCSNpp(model_type="ncsn", **arguments), base | ncsn)

    # Two channels, three levels and classes.
    deep = dict(channel_mult=(1, 2, 2), label_dim=5, augment_dim=0)
    skips = dict(channels=2, encoder_type="skip", decoder_type="skip")
    model = with_skips(ncsnpp)(model_type="ddpm", in_channels=2, out_channels=2, **(arguments | deep))
    make("skips", "song", model, base | deep | skips, labels=5)

    # 64 channels a head, so that the middle level has one.
    wide = dict(channel_mult=(1, 8, 1), label_dim=5, augment_dim=0)
    model = guided_diffusion.ADMUNet(**(arguments | wide))
    make("dhariwal", "dhariwal", model, base | wide, labels=5)


if __name__ == "__main__":
    main(*sys.argv[1:])
