"""Makes adm_OPTION.safetensors: guided-diffusion U-Nets with the options that adm_tiny has not, on random weights.

    python3 -m venv /tmp/adm && /tmp/adm/bin/pip install torch numpy safetensors
    /tmp/adm/bin/python tests/golden/make_adm.py

The PyTorch twin is bench/torch_adm.py. The files are laid out like those of make_edm.py.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "bench"))
from torch_adm import Adm  # noqa: E402

TINY = dict(image_size=8, channels=3, model_channels=8, channel_mult=[1, 2], num_res_blocks=1,
            attention_resolutions=[4], num_heads=2, norm_groups=4)
OPTIONS = {
    "plain": dict(),
    "pooled": dict(conv_resample=False, use_new_attention_order=True, use_scale_shift_norm=True),
    "classes": dict(num_classes=5, learn_sigma=True, resblock_updown=True, use_scale_shift_norm=True,
                    use_new_attention_order=True, num_heads_upsample=4),
    "updown": dict(channels=2, channel_mult=[2, 1, 3], resblock_updown=True, num_head_channels=8,
                   attention_resolutions=[8, 2]),
}


def toml(settings):
    def value(v):
        return str(v).lower() if isinstance(v, bool) else str(v)
    lines = ["[network]", 'kind = "adm"'] + [f"{k} = {value(v)}" for k, v in settings.items()]
    return "\n".join(lines + ["", "[preconditioning]", 'kind = "vp"', ""])


def make(name, settings):
    torch.manual_seed(7)
    model = Adm(settings).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            vector = p.ndim == 1
            values = torch.randn(p.shape) * (0.1 if vector else p[0].numel() ** -0.5)
            # The only vectors called weight are the scales of norms.
            p.copy_((values + (vector and key.endswith("weight"))).half().float())
    shape = (2, settings["channels"], 8, 8)
    x, noise = torch.randn(shape, requires_grad=True), torch.tensor([3.0, 712.5])
    tensors = {f"weights.{k}": t.half().contiguous() for k, t in model.state_dict().items()}
    classes = None
    if "num_classes" in settings:
        classes = tensors["classes"] = torch.tensor([1, 4])
    out = model(x, noise, classes)
    v = torch.randn(out.shape)
    (vjp,) = torch.autograd.grad((out * v).sum(), x)
    tensors |= {"x": x.detach(), "noise": noise, "v": v, "out": out.detach().contiguous(), "vjp": vjp}
    path = HERE / f"adm_{name}.safetensors"
    save_file(tensors, path, metadata={"daps.config": toml(settings)})
    print(path.name, path.stat().st_size, "bytes, largest output", float(out.detach().abs().max()))


for name, changes in OPTIONS.items():
    make(name, TINY | changes)
