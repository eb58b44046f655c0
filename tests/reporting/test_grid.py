"""Grids: tiles where they belong, pixels as they are, names beside their rows."""

import numpy as np
import pytest
import torch

from dpray import models
from dpray.contract import Synthesizer
from dpray.errors import BadInput
from dpray.reporting.grid import as_bytes, class_grid, grid, named_rows


@pytest.fixture
def synthesizer() -> Synthesizer:
    torch.manual_seed(0)
    arguments = {"shape": [1, 16, 16], "num_classes": 3, "latent": 4, "hidden": 8}
    module = models.build("conditional-decoder", **arguments)
    return Synthesizer("conditional-decoder", arguments, module, ("a", "b", "c"), (1, 16, 16))


def test_an_image_is_found_in_its_row_and_column_each_pixel_twice_as_wide():
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    picture = np.asarray(grid(images, columns=3, pad=2))
    assert picture.shape == (2 * 58 + 2, 3 * 58 + 2)
    fifth = picture[2 + 58 : 2 + 58 + 56, 2 + 58 : 2 + 58 + 56]
    np.testing.assert_array_equal(fifth, as_bytes(images[4, 0]).repeat(2, 0).repeat(2, 1))
    assert (picture[60:, 118:] == 255).all()  # no sixth image


def test_colours_stay_in_their_channels():
    red = torch.zeros(1, 3, 32, 32)
    red[:, 0] = 1
    assert grid(red, columns=1).getpixel((20, 20)) == (255, 0, 0)


def test_bytes_are_shown_as_they_are():
    images = torch.full((1, 1, 64, 64), 7, dtype=torch.uint8)
    picture = grid(images, columns=1, pad=0)
    assert picture.size == (64, 64) and picture.getpixel((0, 0)) == 7


@pytest.mark.parametrize(("side", "tile"), [(8, 56), (16, 64), (28, 56), (32, 64), (96, 96)])
def test_small_images_are_enlarged_to_a_legible_size(side, tile):
    assert grid(torch.zeros(1, 1, side, side), columns=1, pad=0).size == (tile, tile)


def test_the_nearest_byte_is_taken():
    assert as_bytes(torch.tensor([0.0, 0.1, 0.999, 1.0, 1.2])).tolist() == [0, 26, 255, 255, 255]


def test_what_is_not_a_batch_of_images_is_refused():
    with pytest.raises(BadInput, match="1 or 3 channels"):
        grid(torch.zeros(4, 2, 8, 8), columns=2)
    with pytest.raises(BadInput, match="at least 1 column"):
        grid(torch.zeros(4, 1, 8, 8), columns=0)


def test_names_stand_at_the_left_of_their_rows():
    tiles = torch.ones(4, 3, 16, 16)  # white: all ink is that of the names
    picture = np.asarray(named_rows(tiles, ["", "dog"]))
    plain = grid(tiles, columns=2)
    assert picture.shape[0] == plain.height and picture.shape[1] > plain.width
    assert (picture[:66] == 255).all() and (picture[66:] < 100).any()
    assert (picture[:, -plain.width :] == 255).all()


def test_a_class_grid_has_a_row_a_class_and_comes_again_with_its_seed(synthesizer):
    def drawn(seed: int) -> np.ndarray:
        rng = torch.Generator().manual_seed(seed)
        return np.asarray(class_grid(synthesizer, per_class=4, rng=rng))

    rng = torch.Generator().manual_seed(3)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    plain = np.asarray(grid(synthesizer.sample(labels, rng), columns=4))
    np.testing.assert_array_equal(drawn(3)[:, -plain.shape[1] :], plain)
    assert not np.array_equal(drawn(3), drawn(4))


def test_a_set_is_shown_as_it_is_and_no_image_twice():
    arguments = {"shape": [1, 8, 8], "num_images": 6}
    module = models.build("image-set", **arguments)
    module.labels.copy_(torch.tensor([0, 1, 0, 1, 0, 1]))
    module.images.copy_(torch.linspace(0, 1, 6)[:, None, None, None].expand(6, 1, 8, 8))
    release = Synthesizer("image-set", arguments, module, ("a", "b"), (1, 8, 8))
    shown = np.asarray(class_grid(release, per_class=9, rng=torch.Generator()))
    plain = np.asarray(grid(module.images[[0, 2, 4, 1, 3, 5]], columns=3))
    np.testing.assert_array_equal(shown[:, -plain.shape[1] :], plain)
