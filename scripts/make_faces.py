#!/usr/bin/env python3
"""Makes a data set of synthetic faces: a tar of lossless WebP pictures, 00000.webp, 00001.webp, …

    python3 -m venv faces-venv
    faces-venv/bin/pip install openvino numpy pillow
    faces-venv/bin/pip install --no-deps random-face
    faces-venv/bin/python scripts/make_faces.py --count 8127 --out data/faces64.tar

Faces come from the MobileStyleGAN generator in the PyPI package `random-face` (Apache-2.0), run with the PyPI package
`openvino`: a normal vector becomes a style, the style is drawn towards the mean style (truncation), and the synthesis
network makes 1024x1024 pixels of it, which are shrunk with a Lanczos filter. About a second a face on one thread.
Face number i depends on (seed, i) alone, so a set can be made in parts (--first). The generator was distilled from
StyleGAN2-FFHQ, whose terms are non-commercial: treat the pictures, and priors trained on them, as research use.
"""
import argparse
import importlib.util
import io
import json
import pathlib
import tarfile

import numpy as np
from openvino import Core
from PIL import Image


def package_folder():
    """Where random-face keeps its networks; the package itself asks for an old openvino and is not imported."""
    spec = importlib.util.find_spec("random_face")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("error: the package random-face is not installed (pip install --no-deps random-face)")
    return pathlib.Path(spec.submodule_search_locations[0])


class Generator:
    def __init__(self, threads):
        folder = package_folder()
        config = json.loads((folder / "configs/config.json").read_text())
        self.dim, self.range = config["style_dim"], config["img_range"]
        core = Core()
        settings = {"INFERENCE_NUM_THREADS": threads}
        mapping = core.read_model(folder / config["mnet_xml"])
        mapping.reshape([-1, self.dim])
        self.mapping = core.compile_model(mapping, "CPU", settings)
        self.synthesis = core.compile_model(core.read_model(folder / config["snet_xml"]), "CPU", settings)
        z = np.random.default_rng(0).standard_normal((config["n_samples"], self.dim), dtype=np.float32)
        self.mean = self.mapping([z])[0].mean(axis=0, keepdims=True)

    def face(self, seed, number, truncation):
        """RGB bytes, 1024 x 1024 x 3."""
        z = np.random.default_rng([seed, number]).standard_normal((1, self.dim), dtype=np.float32)
        style = self.mean + truncation * (self.mapping([z])[0] - self.mean)
        pixels = self.synthesis([style])[0][0].transpose(1, 2, 0)
        low, high = self.range
        return (np.clip((pixels - low) / (high - low), 0, 1) * 255 + 0.5).astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description="Make a data set of synthetic faces.")
    parser.add_argument("--count", type=int, required=True, help="how many faces")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--size", type=int, default=64, help="side in pixels (default 64)")
    parser.add_argument("--truncation", type=float, default=0.85, help="share of the way from the mean style (default 0.85)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the tar to write")
    args = parser.parse_args()
    if args.count < 1 or not 1 <= args.size <= 1024:
        parser.error("expected a count from 1 and a size from 1 to 1024")
    generator = Generator(args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    partial = args.out.with_name(args.out.name + ".part")
    with tarfile.open(partial, "w") as archive:
        for number in range(args.first, args.first + args.count):
            picture = Image.fromarray(generator.face(args.seed, number, args.truncation))
            picture = picture.resize((args.size, args.size), Image.LANCZOS)
            data = io.BytesIO()
            picture.save(data, "WEBP", lossless=True)
            entry = tarfile.TarInfo(f"faces{args.size}/{number:05d}.webp")
            entry.size = data.tell()
            data.seek(0)
            archive.addfile(entry, data)
            print(f"\r{number - args.first + 1}/{args.count}", end="", flush=True)
    partial.rename(args.out)
    print(f"\n{args.out} written")


if __name__ == "__main__":
    main()
