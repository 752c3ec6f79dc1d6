"""What the model says now: real predictions, and training's random state untouched."""

from __future__ import annotations

import base64

import torch

from trainers import registry, samples


def take(model_name: str, dataset_name: str, seed: int = 0) -> tuple[str, object]:
    """Return the sample of an untrained network; fail when random numbers or modes were touched."""
    registry.discover_all()
    dataset = registry.datasets()[dataset_name].create()
    torch.manual_seed(7)
    network = registry.models()[model_name].build(dataset.spec()).train()
    _, validation = dataset.load(torch.device("cpu"))
    before = torch.get_rng_state()
    taken = samples.take(network, dataset.spec(), validation, seed)
    assert torch.equal(torch.get_rng_state(), before), "a sample must not change what training draws next"
    assert network.training
    assert taken is not None
    return taken


def test_images_come_with_pixels_label_and_the_networks_own_prediction() -> None:
    kind, content = take("mlp", "digits")
    assert kind == "images" and isinstance(content, list) and len(content) == samples.NUM_IMAGES
    for image in content:
        assert len(base64.b64decode(image["pixels"])) == image["height"] * image["width"] == 64
        assert image["label"] in "0123456789" and image["prediction"] in "0123456789"
        assert 0.1 <= image["probability"] <= 1
    assert max(max(base64.b64decode(image["pixels"])) for image in content) == 255, "bright to the eye"


def test_text_is_written_in_the_data_sets_characters_and_the_same_for_a_seed() -> None:
    kind, text = take("gpt", "austen")
    assert kind == "text" and isinstance(text, str) and len(text) == samples.NUM_CHARACTERS
    assert set(text) <= set(registry.datasets()["austen"].create().spec().class_names)
    assert take("gpt", "austen") == ("text", text)
    assert take("gpt", "austen", seed=1) != ("text", text)
