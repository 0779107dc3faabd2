"""Serve the classifier: POST {"images": [[64 numbers from 0 to 1], ...]} gives {"digits": [...]}."""

import json
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

MAX_BODY_BYTES = 4 * 2**20
MAX_IMAGES = 1024
PIXELS = 64


class BadInput(ValueError):
    """What is wrong with a request, and in which field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def parse_images(body: bytes) -> list[list[float]]:
    """Return the images of a request's body.

    Raises:
        BadInput: naming the field.
    """
    if len(body) > MAX_BODY_BYTES:
        raise BadInput("body", f"{len(body)} bytes; at most {MAX_BODY_BYTES}")
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("body", "not JSON") from None
    if not isinstance(content, dict) or "images" not in content:
        raise BadInput("images", "missing")
    images = content["images"]
    if not isinstance(images, list) or not 1 <= len(images) <= MAX_IMAGES:
        raise BadInput("images", f"a list of 1 to {MAX_IMAGES} images")
    for index, image in enumerate(images):
        if not isinstance(image, list) or len(image) != PIXELS:
            raise BadInput(f"images[{index}]", f"a list of {PIXELS} numbers")
        for position, pixel in enumerate(image):
            if isinstance(pixel, bool) or not isinstance(pixel, (int, float)) or not 0 <= pixel <= 1:
                raise BadInput(f"images[{index}][{position}]", "a number from 0 to 1")
    return images


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 1}, health_check_period_s=1, health_check_timeout_s=3)
class Digits:
    def __init__(self, model_dir: str) -> None:
        import torch
        from model import make_model

        torch.set_num_threads(1)
        self._torch = torch
        self._model = make_model()
        self._model.load_state_dict(torch.load(Path(model_dir) / "model.pt", weights_only=True))
        self._model.eval()

    async def __call__(self, request: Request) -> JSONResponse:
        if request.method != "POST":
            return JSONResponse({"field": "method", "error": "use POST"}, status_code=405)
        try:
            images = parse_images(await request.body())
        except BadInput as error:
            return JSONResponse({"field": error.field, "error": str(error)}, status_code=422)
        with self._torch.inference_mode():
            scores = self._model(self._torch.tensor(images, dtype=self._torch.float32))
        return JSONResponse({"digits": scores.argmax(1).tolist()})


def app(model_dir: Path) -> serve.Application:
    """Build the application of a model version; the platform calls it with the model's directory."""
    return Digits.bind(str(model_dir))
