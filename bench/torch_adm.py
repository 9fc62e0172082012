"""A compact ADM (guided-diffusion) U-Net in PyTorch with the public parameter names: the twin of daps' own.

Used by compare_torch.py and tests/golden/make_adm.py. It reads the settings of a daps network configuration.
"""

import math

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate, scaled_dot_product_attention, silu

DEFAULTS = dict(channels=3, num_heads=4, num_head_channels=None, num_heads_upsample=None, learn_sigma=False,
                use_scale_shift_norm=False, resblock_updown=False, conv_resample=True,
                use_new_attention_order=False, num_classes=None, norm_groups=32)


def resized(x, how):
    if how == "up":
        return interpolate(x, scale_factor=2, mode="nearest")
    return avg_pool2d(x, 2) if how == "down" else x


class Res(nn.Module):
    def __init__(self, s, c_in, c_out, how=None):
        super().__init__()
        self.how, self.adaptive = how, s["use_scale_shift_norm"]
        groups, width = s["norm_groups"], 4 * s["model_channels"]
        self.in_layers = nn.ModuleList([nn.GroupNorm(groups, c_in), nn.SiLU(), nn.Conv2d(c_in, c_out, 3, 1, 1)])
        self.emb_layers = nn.ModuleList([nn.SiLU(), nn.Linear(width, 2 * c_out if self.adaptive else c_out)])
        self.out_layers = nn.ModuleList([nn.GroupNorm(groups, c_out), nn.SiLU(), nn.Identity(),
                                         nn.Conv2d(c_out, c_out, 3, 1, 1)])
        self.skip_connection = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1)

    def forward(self, x, emb):
        h = self.in_layers[2](resized(silu(self.in_layers[0](x)), self.how))
        e = self.emb_layers[1](emb)[:, :, None, None]
        if self.adaptive:
            scale, shift = e.chunk(2, 1)
            h = self.out_layers[0](h) * (1 + scale) + shift
        else:
            h = self.out_layers[0](h + e)
        return self.skip_connection(resized(x, self.how)) + self.out_layers[3](silu(h))


class Attention(nn.Module):
    def __init__(self, s, c, up=False):
        super().__init__()
        heads = (s["num_heads_upsample"] or s["num_heads"]) if up else s["num_heads"]
        self.heads = c // s["num_head_channels"] if s["num_head_channels"] else heads
        self.new_order = s["use_new_attention_order"]
        self.norm = nn.GroupNorm(s["norm_groups"], c)
        self.qkv, self.proj_out = nn.Conv1d(c, 3 * c, 1), nn.Conv1d(c, c, 1)

    def forward(self, x, _):
        n, c, height, width = x.shape
        flat = x.reshape(n, c, -1)
        qkv = self.qkv(self.norm(flat))
        if self.new_order:  # all queries, all keys, all values
            q, k, v = (t.reshape(n, self.heads, c // self.heads, -1) for t in qkv.chunk(3, 1))
        else:  # head by head
            q, k, v = qkv.reshape(n, self.heads, 3, c // self.heads, -1).unbind(2)
        a = scaled_dot_product_attention(*(t.transpose(2, 3) for t in (q, k, v)))
        return (flat + self.proj_out(a.transpose(2, 3).reshape(n, c, -1))).reshape(n, c, height, width)


class Plain(nn.Module):
    """A change of size without a residual block; its convolution, if any, has the public name."""

    def __init__(self, s, c, how):
        super().__init__()
        self.how, self.conv_resample = how, s["conv_resample"]
        if self.conv_resample and how == "down":
            self.op = nn.Conv2d(c, c, 3, 2, 1)
        elif self.conv_resample:
            self.conv = nn.Conv2d(c, c, 3, 1, 1)

    def forward(self, x, _):
        if self.conv_resample and self.how == "down":
            return self.op(x)
        x = resized(x, self.how)
        return self.conv(x) if self.conv_resample else x


class First(nn.Conv2d):
    def forward(self, x, _):
        return super().forward(x)


class Adm(nn.Module):
    def __init__(self, settings):
        super().__init__()
        s = {**DEFAULTS, **settings}
        base, mults, blocks = s["model_channels"], s["channel_mult"], s["num_res_blocks"]
        attends = [s["image_size"] >> level in s["attention_resolutions"] for level in range(len(mults))]

        def resize(c, how):
            return Res(s, c, c, how) if s["resblock_updown"] else Plain(s, c, how)

        self.base = base
        self.time_embed = nn.Sequential(nn.Linear(base, 4 * base), nn.SiLU(), nn.Linear(4 * base, 4 * base))
        self.label_emb = nn.Embedding(s["num_classes"], 4 * base) if s["num_classes"] else None
        c = base * mults[0]
        down, widths = [nn.ModuleList([First(s["channels"], c, 3, 1, 1)])], [c]
        for level, mult in enumerate(mults):
            for _ in range(blocks):
                layers = [Res(s, c, mult * base)]
                c = mult * base
                down.append(nn.ModuleList(layers + [Attention(s, c)] * attends[level]))
                widths.append(c)
            if level + 1 < len(mults):
                down.append(nn.ModuleList([resize(c, "down")]))
                widths.append(c)
        up = []
        self.middle_block = nn.ModuleList([Res(s, c, c), Attention(s, c), Res(s, c, c)])
        for level, mult in reversed(list(enumerate(mults))):
            for i in range(blocks + 1):
                layers = [Res(s, c + widths.pop(), mult * base)]
                c = mult * base
                layers += [Attention(s, c, up=True)] * attends[level]
                if level > 0 and i == blocks:
                    layers.append(resize(c, "up"))
                up.append(nn.ModuleList(layers))
        self.input_blocks, self.output_blocks = nn.ModuleList(down), nn.ModuleList(up)
        out = s["channels"] * (2 if s["learn_sigma"] else 1)
        self.out = nn.Sequential(nn.GroupNorm(s["norm_groups"], c), nn.SiLU(), nn.Conv2d(c, out, 3, 1, 1))

    def forward(self, x, noise, classes=None):
        half = self.base // 2
        f = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
        angles = noise[:, None].float() * f[None]
        emb = torch.cat([angles.cos(), angles.sin()], 1)
        emb = self.time_embed(emb)
        if self.label_emb is not None:
            emb = emb + self.label_emb(classes)
        emb, skips = silu(emb), []
        for block in self.input_blocks:
            for layer in block:
                x = layer(x, emb)
            skips.append(x)
        for layer in self.middle_block:
            x = layer(x, emb)
        for block in self.output_blocks:
            x = torch.cat([x, skips.pop()], 1)
            for layer in block:
                x = layer(x, emb)
        return self.out(x)
