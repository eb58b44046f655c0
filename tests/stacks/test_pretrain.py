"""Stage 1, a block: what training many encoders at once gives is what one alone would be."""

import pickle
from dataclasses import replace

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from dpray.errors import BadInput
from dpray.stacks.draws import MemberDraws, member_seed
from dpray.stacks.pretrain import EncoderJob, pretrain_block
from dpray.stacks.recipes import EncoderSettings, conv_recipe
from dpray.stacks.subsets import Subsets


def job(subsets, settings, *numbers):
    return EncoderJob(numbers, subsets.batch(torch.tensor(numbers)), settings)


def alone(subsets, settings, number):
    """The encoder of one subset by a plain loop over one module, with the same draws."""
    batch = subsets.batch(torch.tensor([number]))
    pixels, labels = batch.pixels[0], batch.labels[0]
    own = settings.seed if settings.shared_start else member_seed(settings.seed, number, "start")
    model = settings.recipe.build(own)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    recipe, size = settings.recipe, batch.sizes[0]
    draws = MemberDraws(settings.seed, number, size, settings.batch_size, recipe.latent)
    for count in [16] * (settings.steps // 16) + [settings.steps % 16]:
        for noise, rows in zip(draws.noise(count), draws.rows(count), strict=True):
            optimizer.zero_grad()
            losses = model.example_losses(pixels[rows], labels[rows], noise, settings.kl_weight)
            losses.mean().backward()
            clip_grad_norm_(model.encoder.parameters(), settings.clip_norm)
            clip_grad_norm_(model.decoder.parameters(), settings.clip_norm)
            optimizer.step()
    return model.encoder.state_dict()


def same(first, second, tolerance=1e-4):
    assert first.keys() == second.keys()
    return all(torch.allclose(first[n], second[n], atol=tolerance, rtol=0) for n in first)


def member(stack, place):
    return {name: value[place] for name, value in stack.items()}


@pytest.mark.parametrize("shared_start", [True, False])
def test_a_block_gives_what_a_plain_loop_over_one_module_gives(subsets, settings, shared_start):
    # Subset 5 has more records than a batch holds, subset 2 has a single one.
    settings = replace(settings, shared_start=shared_start)
    numbers = (5, 1, 4, 2)
    block = pretrain_block(job(subsets, settings, *numbers))
    for place, number in enumerate(numbers):
        assert same(member(block, place), alone(subsets, settings, number))
    # And it is no accident of encoders that hardly move.
    start = settings.recipe.build(settings.seed).encoder.state_dict()
    assert not same(member(block, 0), start, tolerance=1e-2)


def test_an_encoder_does_not_depend_on_the_block_it_is_in(subsets, settings):
    first = pretrain_block(job(subsets, settings, 5, 1, 0))
    second = pretrain_block(job(subsets, settings, 2, 0, 1))
    assert same(member(first, 1), member(second, 2), tolerance=1e-5)
    assert same(member(first, 2), member(second, 1), tolerance=1e-5)
    assert not same(member(first, 1), member(first, 2), tolerance=1e-2)


def test_a_removed_record_changes_exactly_one_encoder(images, numbers, settings):
    kept = torch.ones(len(images), dtype=torch.bool)
    kept[(numbers == 1).nonzero()[0]] = False
    whole = Subsets(images, numbers, 6)
    less = Subsets(images[kept], numbers[kept], 6)
    asked = (5, 1, 4, 0)  # subset 5 is the longest: the padding stays as it was
    first = pretrain_block(job(whole, settings, *asked))
    second = pretrain_block(job(less, settings, *asked))
    changed = [k for i, k in enumerate(asked) if not same(member(first, i), member(second, i), 0)]
    assert changed == [1]


def test_a_shared_start_is_the_same_for_all_and_a_fresh_one_is_not(subsets, settings):
    untrained = replace(settings, steps=0)
    alike = pretrain_block(job(subsets, untrained, 0, 1))
    fresh = pretrain_block(job(subsets, replace(untrained, shared_start=False), 0, 1))
    public = settings.recipe.build(settings.seed).encoder.state_dict()
    assert same(member(alike, 0), public, 0) and same(member(alike, 1), public, 0)
    assert not same(member(fresh, 0), member(fresh, 1), 1e-2)


def test_an_encoder_without_records_stays_at_its_start(subsets, settings):
    block = pretrain_block(job(subsets, settings, 0, 3))
    assert same(member(block, 1), settings.recipe.build(settings.seed).encoder.state_dict(), 0)


def test_what_is_in_the_padding_has_no_weight(subsets, settings):
    clean = job(subsets, settings, 1, 0)
    pixels = clean.batch.pixels.clone()
    pixels[clean.batch.mask == 0] = 0.7
    other = EncoderJob(clean.numbers, replace(clean.batch, pixels=pixels), settings)
    assert same(pretrain_block(clean), pretrain_block(other), 0)


def test_only_encoders_come_back_as_plain_float32(subsets, settings):
    block = pretrain_block(job(subsets, settings, 0, 1))
    assert list(block) == list(settings.recipe.build(0).encoder.state_dict())
    for value in block.values():
        assert value.dtype == torch.float32 and value.is_contiguous()
        assert not value.requires_grad


def test_a_job_travels_and_shows_nothing(subsets, settings):
    sent = job(subsets, settings, 0, 1)
    got = pickle.loads(pickle.dumps(sent))
    assert same(pretrain_block(got), pretrain_block(sent), 0)
    assert "tensor" not in repr(sent)


def test_convolutions_come_out_the_same_in_turn_and_side_by_side(subsets, monkeypatch):
    recipe = conv_recipe((1, 6, 5), num_classes=3, latent=2, channels=(6, 4))
    settings = EncoderSettings(recipe=recipe, steps=3, lr=1e-2)
    in_turn = pretrain_block(job(subsets, settings, 1, 0))
    assert same(member(in_turn, 0), alone(subsets, settings, 1))
    monkeypatch.setattr(EncoderSettings, "one_by_one", False)
    assert same(pretrain_block(job(subsets, settings, 1, 0)), in_turn)


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"steps": -1}, {"clip_norm": float("nan")}])
def test_settings_that_make_no_sense_are_refused(settings, wrong):
    with pytest.raises(BadInput, match="must be"):
        replace(settings, **wrong)


def test_the_digest_tells_settings_and_data_apart_but_not_devices(settings):
    digest = settings.digest("data")
    assert replace(settings, device="cuda").digest("data") == digest
    others = {replace(settings, lr=0.5).digest("data"), settings.digest("other"), settings.digest()}
    assert len(others | {digest}) == 4


def test_building_a_pair_leaves_the_random_state_alone(settings):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = settings.recipe.build(1), settings.recipe.build(1)
    assert torch.equal(torch.rand(2), expected)
    assert same(first.state_dict(), second.state_dict(), 0)
    assert not same(first.state_dict(), settings.recipe.build(2).state_dict())
