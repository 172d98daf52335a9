"""Frames as parts of a message, and the question that tells whether a model sees them (--vision auto)."""
import base64
import io
import re

import numpy as np
from PIL import Image

from models import Reply


def picture(frame: np.ndarray) -> dict:
    """A frame (height, width, 3) uint8 as an image part at twice its size."""
    out, image = io.BytesIO(), Image.fromarray(frame)
    image.resize((image.width * 2, image.height * 2), Image.Resampling.NEAREST).save(out, "PNG")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()}}


HALVES = np.full((64, 64, 3), (0, 0, 255), np.uint8)                     # blue, its left half yellow
HALVES[:, :32] = (255, 255, 0)
PROBE = [{"role": "user", "content": [
    {"type": "text", "text": "Which colour is this picture's left half, and which its right half? Two words."}, picture(HALVES)]}]


def saw(reply: Reply) -> bool:
    """Whether the answer to PROBE names both colours in order."""
    return re.search(r"yellow.*blue", reply.text, re.I | re.S) is not None
