"""Images in chats: their size without decoding, and what they add to the prompt."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from core.engine.image_rule import ImageRule
from pools.gateway.requests.images import size_of
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.conftest import Bench

CHAT = "/v1/chat/completions"
RULE = ImageRule(token_px=28, least_px=3_136, most_px=12_845_056)


def picture(kind: str, size: tuple[int, int], **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (9, 90, 200)).save(out, kind, **options)
    return out.getvalue()


def data_url(image: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def part(url: str) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"url": url}).encode())


def chat(*urls: str) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": "What is this? " * 10}, *images]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 20}


async def metrics(bench: Bench) -> str:
    async with bench.http.get(bench.url + "/metrics") as page:
        return str(await page.text())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "exif": b"Exif\0\0" + bytes(60_000)}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {}),
        ("WEBP", {"exif": b"Exif\0\0II*\0"}),
    ],
)
def test_size_is_read_from_the_files_first_bytes(kind: str, options: dict[str, Any]) -> None:
    image = picture(kind, (321, 123), **options)
    assert size_of(part(data_url(image, kind.lower()))) == (321, 123)
    escaped = json.dumps(data_url(image, kind.lower())).replace("/", "\\/")  # as some clients write JSON
    assert size_of(msgspec.Raw(escaped.encode())) == (321, 123)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png",
        "data:image/png;base64,",
        "data:image/png;base64,!!!!",
        "data:image/svg+xml;base64,PHN2Zy8+",
        data_url(picture("PNG", (9, 9))[:20]),
        data_url(b"\xff\xd8" + b"\xff\xe1\xff\xff" * 8, "jpeg"),
        data_url(b"\x89PNG\r\n\x1a\n" + bytes(16)),
    ],
)
def test_size_is_not_known_when_it_is_not_in_the_body(url: str) -> None:
    assert size_of(part(url)) is None


@given(st.binary(max_size=200), st.sampled_from([b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF0000WEBPVP8 ", b""]))
def test_any_bytes_have_a_size_or_none(rest: bytes, begins: bytes) -> None:
    size = size_of(part(data_url(begins + rest)))
    assert size is None or min(size) > 0


async def test_images_count_in_the_prompt_of_a_chat(bench: Bench) -> None:
    small, large = data_url(picture("PNG", (280, 280))), data_url(picture("JPEG", (1400, 1400)), "jpeg")
    for rule in (None, RULE):
        bench.fleet.images = rule
        bench.publish()
        bench.engine.status = 500  # so that what counts is the estimate
        async with bench.post(chat(small, large), CHAT) as answer:
            assert answer.status == 500
    without, with_images = (row.prompt_tokens for row in bench.rows())
    assert without is not None
    assert with_images == without + 100 + 2500
    assert [row.request_class for row in bench.rows()] == ["SS", "LS"]
    assert f'images_total{{service="{MODEL}",size="known"}} 2' in await metrics(bench)


async def test_image_whose_size_is_not_known_counts_as_the_largest_and_metrics_say_so(bench: Bench) -> None:
    bench.fleet.images = ImageRule(fixed_tokens=576)
    bench.publish()
    bench.engine.status = 500
    url = "data:image/avif;base64,AAAAIGZ0eXA="
    async with bench.post(chat(url, url), CHAT) as answer:
        assert answer.status == 500
    row = await bench.row()
    assert row.prompt_tokens is not None
    assert row.prompt_tokens > 2 * 576
    assert f'images_total{{service="{MODEL}",size="unknown"}} 2' in await metrics(bench)
