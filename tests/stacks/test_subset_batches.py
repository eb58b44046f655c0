"""Subsets: every record in its own, in an order of its own, and padding that says nothing."""

import pytest
import torch

from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.stacks.subsets import Subsets


def test_a_batch_holds_the_records_of_its_subsets_and_no_others(subsets, images, numbers):
    batch = subsets.batch(torch.tensor([4, 0, 5]))
    assert batch.pixels.shape == (3, 9, 1, 6, 5)
    for place, number in enumerate([4, 0, 5]):
        own = (numbers == number).nonzero().flatten()
        own = own[images.ids[own].argsort()]
        filled = batch.mask[place] == 1
        assert torch.equal(batch.ids[place][filled], images.ids[own])
        assert torch.equal(batch.pixels[place][filled], images.pixels[own])
        assert torch.equal(batch.labels[place][filled], images.labels[own])


def test_padding_has_a_mask_of_zero_and_is_the_subsets_own(subsets):
    batch = subsets.batch(torch.tensor([0, 3, 5]))
    assert (batch.mask == 0).sum() == 6 + 9
    assert torch.equal(batch.pixels[0, 3:], batch.pixels[0, 2:3].expand(6, -1, -1, -1))
    assert batch.ids[0, 3:].tolist() == [batch.ids[0, 2].item()] * 6
    assert batch.pixels[1].abs().sum() == batch.labels[1].sum() == batch.ids[1].sum() == 0
    assert batch.sizes == [3, 0, 9]


def test_subsets_know_who_is_present_and_order_by_size(subsets):
    assert subsets.present.tolist() == [0, 1, 2, 4, 5]
    assert subsets.sizes.tolist() == [3, 5, 1, 0, 4, 9]
    assert subsets.by_size(torch.tensor([2, 1, 4, 5, 0])).tolist() == [5, 1, 4, 0, 2]


def test_the_order_of_the_dataset_does_not_matter(images, numbers, subsets):
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2))
    other = Subsets(images[order], numbers[order], 6)
    asked = torch.tensor([1, 5])
    assert torch.equal(other.batch(asked).pixels, subsets.batch(asked).pixels)


def test_a_batch_of_an_empty_subset_is_one_row_of_padding(subsets):
    batch = subsets.batch(torch.tensor([3]))
    assert batch.pixels.shape[:2] == (1, 1)
    assert batch.mask.sum() == 0


def test_numbers_that_do_not_fit_are_refused(images, numbers):
    with pytest.raises(BadInput, match="0 to 4"):
        Subsets(images, numbers, 5)
    with pytest.raises(BadInput, match="records"):
        Subsets(images, numbers[1:], 6)


def test_nothing_of_a_batch_shows_when_it_is_printed(subsets):
    text = f"{subsets} {subsets.batch(torch.tensor([0]))}"
    assert "tensor" not in text
    assert isinstance(subsets.images, Images)
