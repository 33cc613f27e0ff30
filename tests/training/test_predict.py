"""Invariant: a picture is classified as the network classifies the same pixels in a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from stochbatch import data
from stochbatch.training import predict
from stochbatch.training.predict import PictureError, classify, prepare
from tests.trained import trained

DIGITS = data.DATASETS["digits"]
COLOURED = data.DATASETS["cifar10"]


def digit(number: int) -> Image.Image:
    return Image.fromarray(data.load("digits", split="test").images[number, 0].numpy())


def enlarged(picture: Image.Image, by: int = 20) -> Image.Image:
    size = (picture.width * by, picture.height * by)
    return picture.resize(size, Image.Resampling.NEAREST)


def direct(count: int) -> torch.Tensor:
    """Return the probabilities of the first test images, by the pipeline of the training."""
    read = trained()
    images, labels = data.load("digits", split="test")
    batches = data.Batches(
        images[:count], labels[:count], count, shuffle=False, normalisation=read.normalisation
    )
    with torch.inference_mode():
        return read.network()(batches.batch(0, 0)[0]).softmax(1)


def test_pictures_are_classified_as_the_same_pixels_in_a_batch() -> None:
    expected = direct(40).topk(3)
    found = classify(trained(), [digit(number) for number in range(40)])
    for prediction, values, places in zip(found, expected.values, expected.indices, strict=True):
        assert [name for name, _ in prediction.classes] == [str(int(at)) for at in places]
        assert [chance for _, chance in prediction.classes] == pytest.approx(
            values.tolist(), abs=1e-5
        )


def test_many_pictures_go_through_the_network_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    read = trained()
    pictures = [Image.new("L", (8, 8), tone) for tone in range(0, 250, 10)]
    whole = classify(read, pictures)
    monkeypatch.setattr(predict, "AT_ONCE", 64 * 4)
    sizes = []
    network = read.network()
    network.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setattr(type(read), "network", lambda _: network)
    parts = classify(read, pictures)
    assert sizes == [4] * 6 + [1]
    assert [one.classes[0][0] for one in parts] == [one.classes[0][0] for one in whole]
    for one, other in zip(parts, whole, strict=True):
        assert one.classes[0][1] == pytest.approx(other.classes[0][1], abs=1e-5)


def test_a_dark_digit_on_light_paper_in_a_file_is_recognised(tmp_path: Path) -> None:
    labels = data.load("digits", split="test").labels[:40]
    paths = []
    for number in range(40):
        paths.append(tmp_path / f"{number}.png")
        ImageOps.invert(enlarged(digit(number))).save(paths[-1])
    found = classify(trained(), paths, top=1)
    right = [
        prediction.classes[0][0] == str(int(label))
        for prediction, label in zip(found, labels, strict=True)
    ]
    # Of all test images such a network knows 95 %; below 30 of 40 something else is wrong.
    assert sum(right) >= 30
    assert all(prediction.inverted for prediction in found)
    assert found[0].name == str(paths[0])


def test_an_enlarged_image_comes_back_exactly() -> None:
    pixels, inverted = prepare(enlarged(digit(3)), DIGITS)
    assert not inverted
    np.testing.assert_array_equal(pixels[0], np.asarray(digit(3)))


def test_inverting_can_be_forced_and_forbidden() -> None:
    white = Image.new("L", (8, 8), 255)
    assert prepare(white, DIGITS, invert=False)[0].min() == 255
    assert prepare(white, DIGITS)[0].max() == 0
    assert prepare(Image.new("L", (8, 8), 0), DIGITS, invert=True)[0].min() == 255


def test_coloured_sets_are_never_inverted_unless_asked() -> None:
    white = Image.new("RGB", (50, 40), "white")
    pixels, inverted = prepare(white, COLOURED)
    assert pixels.shape == (3, 32, 32)
    assert pixels.min() == 255
    assert not inverted


def test_a_wide_grey_picture_is_padded_in_the_tone_of_its_border() -> None:
    wide = Image.new("L", (16, 8), 40)
    wide.paste(200, (6, 2, 10, 6))
    pixels, _ = prepare(wide, DIGITS)
    assert (pixels[0, :2] == 40).all()
    assert pixels.max() > 100


def test_the_middle_of_a_wide_coloured_picture_is_cut_out() -> None:
    wide = Image.new("RGB", (96, 32), "red")
    wide.paste((0, 0, 255), (32, 0, 64, 32))
    pixels, _ = prepare(wide, COLOURED)
    assert (pixels[2] == 255).all()


def test_what_is_transparent_is_paper() -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (3, 3, 5, 5))
    pixels, inverted = prepare(clear, DIGITS)
    assert inverted
    assert pixels[0, 0, 0] == 0
    assert pixels[0, 3, 3] == 255


def test_sixteen_bits_are_scaled_and_not_cut_off() -> None:
    deep = Image.fromarray(np.full((8, 8), 20_000, dtype=np.uint16))
    assert prepare(deep, DIGITS)[0].max() == round(20_000 / 257)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F"])
def test_every_mode_of_pillow_is_taken(mode: str) -> None:
    for entry in (DIGITS, COLOURED):
        assert prepare(Image.new(mode, (9, 11)), entry)[0].shape == entry.shape


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no picture .*digit.png"),
        (b"no picture", "digit.png is no picture that Pillow can read"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "digit.png"),
    ],
)
def test_a_file_that_is_no_picture_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "digit.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PictureError, match=message):
        classify(trained(), [path])


def test_a_picture_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "digit.png"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(PictureError, match="digit.png cannot be read"):
        classify(trained(), [path])


def test_a_picture_of_absurd_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "digit.png"
    Image.new("L", (40, 40)).save(path)
    for limit in (1000, 100):  # above the limit Pillow warns, above twice the limit it raises
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(PictureError, match="digit.png cannot be read"):
            classify(trained(), [path])


def test_no_pictures_no_predictions() -> None:
    assert classify(trained(), []) == []


def test_more_classes_than_there_are_is_all_of_them() -> None:
    (prediction,) = classify(trained(), [digit(0)], top=50)
    assert len(prediction.classes) == 10
    assert sum(chance for _, chance in prediction.classes) == pytest.approx(1)


def test_top_must_be_positive() -> None:
    with pytest.raises(ValueError, match="top must be 1 or more, got 0"):
        classify(trained(), [digit(0)], top=0)
