"""Public models: trained once on public images, kept by content, the same in any pool."""

from dataclasses import replace

import pytest
import torch

from dpray import models
from dpray.data.folders import data_cache
from dpray.errors import BadInput
from dpray.inversion.public_models import public_model, public_models
from dpray.inversion.recipes import PublicRecipe
from dpray.pool import SerialPool


def files():
    return sorted((data_cache() / "public-models").glob("*.safetensors"))


def test_a_model_is_trained_once(tiny, public):
    said = []
    first = public_model(tiny, public, say=said.append)
    again = public_model(tiny, public, say=said.append)
    assert len(said) == 1 and len(files()) == 1
    assert first.digest == again.digest
    assert not any(p.requires_grad for p in again.module.parameters())
    assert not again.module.training


def test_a_damaged_file_is_trained_again(tiny, public):
    first = public_model(tiny, public, say=lambda line: None)
    (path,) = files()
    path.write_bytes(path.read_bytes()[:-10])
    said = []
    again = public_model(tiny, public, say=said.append)
    assert len(said) == 1 and again.digest == first.digest


def test_other_images_or_another_recipe_get_another_file(tiny, public):
    def quiet(line):
        pass

    public_model(tiny, public, say=quiet)
    public_model(tiny, public[:40], say=quiet)
    public_model(replace(tiny, seed=1), public, say=quiet)
    assert len(files()) == 3


def test_a_recipe_is_known_by_what_it_trains(tiny):
    written_out = replace(PublicRecipe(), steps=3000, lr=4e-3)
    assert written_out.json() == PublicRecipe().json() != tiny.json()
    assert replace(tiny, loss="wgan").json() == tiny.json()  # an autoencoder has no such loss


def test_a_pool_gives_the_models_one_by_one_gives_and_trains_only_what_is_missing(tiny, public):
    recipes = [tiny, replace(tiny, kind="gan", steps=5), tiny]
    alone = public_model(tiny, public, say=lambda line: None)
    jobs = []

    class NotedPool(SerialPool):
        def map(self, fn, given, **settings):
            jobs.extend(given)
            return super().map(fn, given, **settings)

    found = public_models(recipes, public, pool=NotedPool(), say=lambda line: None)
    assert jobs == [recipes[1]]
    assert [model.recipe.kind for model in found] == ["autoencoder", "gan", "autoencoder"]
    assert found[0].digest == found[2].digest == alone.digest
    second = public_model(recipes[1], public, say=lambda line: None)
    assert second.digest == found[1].digest


def test_training_leaves_the_global_generator_alone(tiny, public):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    public_model(tiny, public, say=lambda line: None)
    public_model(replace(tiny, kind="gan", steps=3), public, say=lambda line: None)
    assert torch.equal(before, torch.get_rng_state())


def test_an_autoencoder_learns_to_show_images_it_has_not_seen(tiny, public):
    recipe = replace(tiny, steps=400, latent=12, hidden=32)
    model = public_model(recipe, public[:60], say=lambda line: None)
    held_out = public.pixels[60:]
    error = (model.decode(model.encode(held_out)) - held_out).square().mean()
    mean = public.pixels[:60].mean(0)
    assert error < 0.5 * (mean - held_out).square().mean()


def test_a_release_rebuilds_a_public_model_from_its_json(tiny, public):
    model = public_model(tiny, public, say=lambda line: None)
    said = model.as_json((1, 8, 8))
    again = models.build(said["model"], **said["arguments"])
    again.load_state_dict(model.module.state_dict())
    latents = torch.randn(3, 6)
    assert torch.equal(again.eval().decode(latents), model.decode(latents))


def test_a_generator_has_no_encoder(tiny, public):
    model = public_model(replace(tiny, kind="gan", steps=1), public, say=lambda line: None)
    with pytest.raises(BadInput, match="no encoder"):
        model.encode(public.pixels)


def test_a_recipe_that_cannot_be_is_refused():
    with pytest.raises(BadInput, match="wgan-gp"):
        PublicRecipe(loss="hinge")
    with pytest.raises(BadInput, match="at least 1"):
        PublicRecipe(latent=0)
