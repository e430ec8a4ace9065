#!/usr/bin/env python3
"""What Pillow and transformers make of small pictures: writes tests/golden/images/*.{jpg,png,webp} and tests/golden/images.jsonl.
Needs pillow, transformers and numpy (13.0.0, 5.24.0 and 2.4.6 when they were made).

Each line is one case: {"kind": "decode" | "turn" | "resize" | "prepare", ...}. Pixels are base64 of RGB bytes. The picture that is resized is
random(seed, width, height) below, which tests/unit/image/golden_test.c makes anew. Of what a processor puts out about a hundred numbers are kept, `step` apart.
"""
import base64
import importlib
import io
import json
import os

import numpy as np
from PIL import Image, ImageOps

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "images")


def random(seed, width, height):
    """Bytes of a linear congruential generator: pixels with nothing to smooth over."""
    out = np.empty(width * height * 3, dtype=np.uint8)
    for i in range(out.size):
        seed = (seed * 1664525 + 1013904223) % 2**32
        out[i] = seed >> 24
    return out.reshape(height, width, 3)


def picture(width, height):
    """Something smooth with edges, so that the files stay small."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], axis=-1)
    rgb[(x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2] = (250, 30, 60)
    return rgb.astype(np.uint8)


def text(pixels):
    return base64.b64encode(np.ascontiguousarray(pixels).tobytes()).decode()


def write_files():
    os.makedirs(FOLDER, exist_ok=True)
    rgb = Image.fromarray(picture(17, 13))
    wide = Image.fromarray(picture(53, 37))
    alpha = np.dstack([picture(17, 13), (np.mgrid[0:13, 0:17][1] * 255 // 16).astype(np.uint8)])
    rgba = Image.fromarray(alpha)

    def save(image, name, **options):
        image.save(os.path.join(FOLDER, name), **options)

    save(rgb, "colour.jpg", quality=90)
    save(wide, "subsampled.jpg", quality=75, subsampling=2)
    save(wide, "progressive.jpg", quality=75, progressive=True)
    save(rgb.convert("L"), "grey.jpg", quality=90)
    save(rgb.convert("CMYK"), "cmyk.jpg", quality=90)
    for orientation in (1, 2, 3, 4, 5, 6, 7, 8):
        exif = Image.Exif()
        exif[0x0112] = orientation
        save(rgb, f"turned{orientation}.jpg", quality=90, exif=exif)
    exif = Image.Exif()
    exif[0x0112] = 6
    save(rgb, "turned6.png", exif=exif)
    save(rgb, "turned6.webp", exif=exif, lossless=True)
    save(rgb, "colour.png")
    save(rgba, "alpha.png")
    save(rgb.convert("L"), "grey.png")
    save(rgba.convert("LA"), "greyalpha.png")
    save(rgb.convert("1"), "bits.png")
    save(rgb.quantize(13), "palette4.png", bits=4)
    save(rgb.quantize(200), "palette.png")
    save(rgb.quantize(13), "paletteclear.png", transparency=bytes(range(0, 255, 20)))
    save(rgb, "colourclear.png", transparency=(250, 30, 60))
    save(Image.fromarray((picture(17, 13)[..., 0].astype(np.uint16) * 5)), "grey16.png")
    save(rgb, "lossy.webp", quality=80)
    save(rgb, "lossless.webp", lossless=True)
    save(rgba, "alpha.webp", quality=80)
    save(rgba, "animated.webp", save_all=True, append_images=[rgba.rotate(180)], duration=100)
    with open(os.path.join(FOLDER, "colour16.png"), "wb") as f:
        f.write(colour16())
    with open(os.path.join(FOLDER, "interlaced.png"), "wb") as f:
        f.write(interlaced(picture(17, 13)))


def chunk(name, data):
    import zlib
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


def png(width, height, depth, colour, interlaced, raw):
    import zlib
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, colour, 0, 0, interlaced])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


def colour16():
    """RGBA of 16 bits, which Pillow does not write."""
    y, x = np.mgrid[0:7, 0:9]
    wide = np.stack([x * 7000, y * 9000, x * y * 1000, 65535 - x * 5000], axis=-1).astype(">u2")
    return png(9, 7, 16, 6, 0, b"".join(b"\0" + row.tobytes() for row in wide))


def interlaced(rgb):
    """Adam7, which Pillow does not write either."""
    raw = b""
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = rgb[y0::dy, x0::dx]
        if part.size:
            raw += b"".join(b"\0" + np.ascontiguousarray(row).tobytes() for row in part)
    return png(rgb.shape[1], rgb.shape[0], 8, 2, 1, raw)


def over_white(image):
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")
    return image.convert("RGB")


def cases():
    for name in sorted(os.listdir(FOLDER)):
        path = os.path.join(FOLDER, name)
        if name.startswith("turned"):
            # the picture as it is, turned by Pillow
            turned = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
            yield {"kind": "turn", "file": name, "width": turned.width, "height": turned.height, "rgb": text(turned)}
            continue
        plain = Image.open(path).convert("RGB")
        case = {"kind": "decode", "file": name, "width": plain.width, "height": plain.height, "rgb": text(plain)}
        white = over_white(Image.open(path))
        if np.any(np.array(white) != np.array(plain)):
            case["white"] = text(white)
        yield case
    for width, height, to in ((37, 29, (13, 11)), (37, 29, (37, 8)), (37, 29, (9, 29)), (11, 9, (31, 23)), (17, 40, (20, 20)), (64, 3, (1, 1)),
                              (3, 64, (5, 9))):
        image = Image.fromarray(random(width * 1000 + height, width, height))
        for filter in range(6):
            done = image.resize(to, resample=filter)
            yield {"kind": "resize", "from": [width, height], "to": list(to), "resample": filter, "rgb": text(done)}
    yield from processors()


# file of transformers, class, what differs from its defaults
PROCESSORS = [
    ("vit", "ViTImageProcessor", {}),
    ("vit", "ViTImageProcessor", {"size": 32, "resample": 0, "do_normalize": False}),
    ("vit", "ViTImageProcessor", {"size": [40, 30], "resample": 1, "do_rescale": False, "image_mean": [104, 117, 123], "image_std": 57.5}),
    ("vit", "ViTImageProcessor", {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 25, "width": 70}}),
    ("clip", "CLIPImageProcessor", {}),
    ("clip", "CLIPImageProcessor", {"size": {"shortest_edge": 30}, "crop_size": 41}),
    ("convnext", "ConvNextImageProcessor", {}),
    ("convnext", "ConvNextImageProcessor", {"size": {"shortest_edge": 224}}),
    ("convnext", "ConvNextImageProcessor", {"size": {"shortest_edge": 50}, "crop_pct": 0.95}),
    ("beit", "BeitImageProcessor", {}),
    ("beit", "BeitImageProcessor", {"do_center_crop": True, "size": 256}),
    ("deit", "DeiTImageProcessor", {}),
    ("efficientnet", "EfficientNetImageProcessor", {"resample": 0}),
    ("efficientnet", "EfficientNetImageProcessor", {"rescale_offset": True, "rescale_factor": 1 / 127.5, "include_top": False}),
    ("mobilenet_v1", "MobileNetV1ImageProcessor", {}),
    ("mobilenet_v2", "MobileNetV2ImageProcessor", {}),
    ("mobilevit", "MobileViTImageProcessor", {}),
    ("siglip", "SiglipImageProcessor", {}),
    ("bit", "BitImageProcessor", {"size": {"shortest_edge": 60}, "crop_size": {"height": 56, "width": 48}}),
    ("levit", "LevitImageProcessor", {}),
    ("pvt", "PvtImageProcessor", {}),
    ("poolformer", "PoolFormerImageProcessor", {}),
    ("poolformer", "PoolFormerImageProcessor", {"size": {"height": 60, "width": 50}, "crop_pct": 0.95, "crop_size": 48}),
    ("blip", "BlipImageProcessor", {"size": 96}),
    ("chinese_clip", "ChineseCLIPImageProcessor", {}),
]


def processors():
    for folder, name, changes in PROCESSORS:
        module = importlib.import_module(f"transformers.models.{folder}.image_processing_pil_{folder}")
        processor = getattr(module, name + "Pil")(**changes)
        config = json.loads(processor.to_json_string())
        for file in ("subsampled.jpg", "alpha.png"):
            image = Image.open(os.path.join(FOLDER, file))
            if not processor.do_convert_rgb:
                image = image.convert("RGB")
            out = np.array(processor(image)["pixel_values"][0], dtype=np.float32)
            assert out.shape[0] == 3
            flat = out.reshape(-1)
            step = flat.size // 100 | 1
            yield {"kind": "prepare", "file": file, "config": config, "width": out.shape[2], "height": out.shape[1], "step": step,
                   "values": base64.b64encode(flat[::step].astype("<f4").tobytes()).decode()}


write_files()
with open(os.path.join(HERE, "images.jsonl"), "w") as out:
    for case in cases():
        out.write(json.dumps(case) + "\n")
