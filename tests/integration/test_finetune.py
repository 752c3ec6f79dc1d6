"""Fine-tuning with the optional packages: real runs, and checks of model folders that need the packages.

The models are stand-ins with a few thousand random weights, created here in the format of trained ones.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.harness import Launcher
from trainers import registry
from trainers.data.dataset import DataOptions, DataSpec
from trainers.datasets.austen import whole_text
from trainers.models import hf_causal, hf_text, timm_image
from trainers.models.networks import pretrained
from trainers.registry import ModelOptions

INSTALL = "pip install -r requirements-finetune.txt"
NUM_TOKENS = 400
PLACES = 64


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed: {INSTALL}"
    )


needs_transformers, needs_timm = needs("transformers"), needs("timm")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a factory of folders with random weights and a BPE tokenizer trained on Austen's text."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_stand_in(tmp_path_factory.mktemp("models") / kind, kind)
        return made[kind]

    return make


def write_stand_in(folder: Path, kind: str, num_known: int = NUM_TOKENS) -> Path:
    pretrained.import_transformers(offline=True)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
    )

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    marks = ["[PAD]", "[CLS]", "[SEP]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    pieces.train_from_iterator([whole_text()[:100_000]], trainer)
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]", eos_token="[SEP]").save_pretrained(
        folder
    )

    torch.manual_seed(0)
    shape = {
        "vocab_size": num_known,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": PLACES,
    }
    # No dropout, so that runs of different strategies can be compared: its random numbers differ between
    # them.
    gpt2 = GPT2Config(
        vocab_size=num_known, n_embd=32, n_layer=2, n_head=2, n_positions=PLACES, bos_token_id=1,
        eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    network = {
        "gpt2": lambda: GPT2LMHeadModel(gpt2),
        "bert": lambda: BertForMaskedLM(BertConfig(**shape)),
        "classifier": lambda: BertForSequenceClassification(BertConfig(**shape, num_labels=3)),
    }[kind]()
    network.save_pretrained(folder)
    return folder


def options(folder: Path) -> ModelOptions:
    return ModelOptions(pretrained_path=str(folder))


def spec(task: str = "text_classification", **changes: Any) -> DataSpec:
    values: dict[str, Any] = {
        "task": task,
        "input_shape": (16,),
        "num_classes": 2 if task == "text_classification" else NUM_TOKENS,
        "class_names": (),
        "num_train": 1,
        "num_validation": 1,
        "sample_unit": "texts",
        "description": "",
        "source": "",
        "vocabulary_size": NUM_TOKENS,
    }
    return DataSpec(**(values | changes))


@needs_transformers
def test_classifier_from_a_folder_is_the_same_on_every_rank_and_trains_all_its_weights(
    stand_in: Callable[[str], Path],
) -> None:
    folder = stand_in("bert")
    built = []
    for _ in range(2):
        torch.manual_seed(3)
        built.append(hf_text.build(spec(), options(folder)))
    states = [network.state_dict() for network in built]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not any("pooler" in name for name in states[0])
    assert built[0].training
    tokens = torch.randint(3, NUM_TOKENS, (4, 16))
    with torch.autocast("cpu", torch.bfloat16):
        scores = built[0](tokens)
    assert scores.shape == (4, 2)
    functional.cross_entropy(scores.float(), torch.tensor([0, 1, 0, 1])).backward()
    assert all(parameter.grad is not None for parameter in built[0].parameters())


@needs_transformers
def test_padding_does_not_change_what_a_classifier_says(stand_in: Callable[[str], Path]) -> None:
    for kind, num_classes in (("bert", 2), ("classifier", 3), ("gpt2", 2)):
        network = hf_text.build(spec(num_classes=num_classes), options(stand_in(kind))).eval()
        text = torch.tensor([[1, 9, 8, 7, 2]])
        padded = functional.pad(text, (0, 6))
        assert torch.allclose(network(text), network(padded), atol=1e-5), kind
        assert not torch.allclose(network(text), network(text.flip(1)), atol=1e-5), kind


@needs_transformers
def test_trained_classes_are_kept_when_there_are_as_many(stand_in: Callable[[str], Path]) -> None:
    from safetensors.torch import load_file

    folder = stand_in("classifier")
    saved = load_file(folder / "model.safetensors")["classifier.weight"]
    kept = hf_text.build(spec(num_classes=3), options(folder))
    assert isinstance(kept, hf_text.PretrainedClassifier)
    assert torch.equal(kept.classifier.classifier.weight, saved)
    assert isinstance(hf_text.build(spec(num_classes=5), options(folder)), hf_text.MeanPoolingClassifier)


@needs_transformers
def test_tokenizer_cuts_marks_and_gives_the_text_back(stand_in: Callable[[str], Path]) -> None:
    marked = hf_text.tokenizer(options(stand_in("bert")))
    plain = hf_causal.tokenizer(options(stand_in("gpt2")))
    assert marked.vocabulary_size == plain.vocabulary_size == NUM_TOKENS
    short, long = marked.encode(["Emma", "Emma " * 50], 10)
    assert (short[0], short[-1]) == (long[0], long[-1]) == (1, 2)
    assert len(long) == 10
    assert marked.decode(short) == "Emma"
    text = "Emma Woodhouse, handsome, clever, and rich;\n\n— née “Été”"
    assert plain.decode(plain.encode([text], 1000)[0]) == text
    # Running text is encoded in chunks: special tokens between them would not be part of the text.
    assert not {0, 1, 2} & set(plain.encode([text], 1000)[0])
    assert marked.padding == plain.padding == 0


@needs_transformers
def test_language_model_sees_only_what_came_before(stand_in: Callable[[str], Path]) -> None:
    language = spec("language_modelling")
    network = hf_causal.build(language, options(stand_in("gpt2")))
    assert network(torch.zeros(2, 16, dtype=torch.long)).shape == (2, 16, NUM_TOKENS)
    with pytest.raises(ValueError, match="attends to the words that it must predict"):
        hf_causal.build(language, options(stand_in("bert")))


@needs_transformers
def test_parts_that_do_not_belong_together_are_refused_in_words(
    stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"sequence_length is {PLACES + 1}"):
        hf_text.build(spec(input_shape=(PLACES + 1,)), options(stand_in("bert")))
    with pytest.raises(ValueError, match=r"does not use the model's tokenizer"):
        hf_text.build(spec(vocabulary_size=99), options(stand_in("bert")))
    small = write_stand_in(tmp_path / "small", "bert", num_known=NUM_TOKENS - 50)
    with pytest.raises(ValueError, match=rf"{NUM_TOKENS} tokens, but the model has only {NUM_TOKENS - 50}"):
        hf_text.build(spec(), options(small))
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"do not belong to its config.json: \d+ weights are missing"):
        hf_text.build(spec(), options(small))
    (small / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(ValueError, match=r"hf_text cannot use the model in"):
        hf_text.build(spec(), options(small))
    (small / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    with pytest.raises(ValueError, match=r"no_such_type"):
        hf_text.build(spec(), options(small))


@needs_transformers
def test_code_that_a_folder_brings_is_not_run(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_stand_in(tmp_path / "trap", "bert")
    trap = tmp_path / "executed"
    (folder / "own.py").write_text(f"open({str(trap)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config | own))
    with pytest.raises(ValueError, match=re.escape(str(folder))):
        hf_text.build(spec(), options(folder))
    assert not trap.exists()


@needs_timm
@pytest.mark.parametrize("size", sorted(set(registry.models()["timm_image"].sizes) - {"resnet50"}))
def test_every_size_of_timm_learns_from_small_grey_images(size: str) -> None:
    registry.discover_all()
    images = registry.datasets()["digits"].create(DataOptions()).spec()
    torch.manual_seed(0)
    network = timm_image.build(images, ModelOptions(size=size))
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(torch.randn(4, *images.input_shape))
    assert scores.shape == (4, 10)
    scores.float().logsumexp(1).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@needs_timm
def test_timm_folder_gives_its_weights_and_a_new_last_layer(tmp_path: Path) -> None:
    timm = pretrained.import_timm(offline=True)
    assert f"timm=={timm.__version__}" == pretrained.TIMM
    from timm.models import save_for_hf

    torch.manual_seed(1)
    trained = timm.create_model("mobilenetv3_small_050", num_classes=7)
    save_for_hf(trained, tmp_path / "model", safe_serialization=True)
    images = spec("image_classification", input_shape=(3, 32, 32), num_classes=10)
    network = timm_image.build(images, options(tmp_path / "model"))
    loaded = network.network.state_dict()
    assert loaded["classifier.weight"].shape[0] == 10
    for name, tensor in trained.state_dict().items():
        assert name.startswith("classifier.") or torch.equal(loaded[name], tensor), name
    same = timm_image.build(spec("image_classification", input_shape=(3, 32, 32), num_classes=7),
                            options(tmp_path / "model"))  # fmt: skip
    assert torch.equal(same.network.classifier.weight, trained.classifier.weight)
    grey = timm_image.build(spec("image_classification", input_shape=(1, 8, 8), num_classes=10),
                            options(tmp_path / "model"))  # fmt: skip
    summed = trained.conv_stem.weight.sum(1, keepdim=True)
    assert torch.allclose(grey.network.conv_stem.weight, summed, atol=1e-6)

    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architecture": "resnet18"}))
    with pytest.raises(ValueError, match="timm_image cannot use the model in"):
        timm_image.build(images, options(tmp_path / "model"))
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architecture": "no_such"}))
    with pytest.raises(ValueError, match="no network called 'no_such'"):
        timm_image.build(images, options(tmp_path / "model"))


@needs_transformers
def test_language_model_learns_on_two_ranks_and_resumes_with_the_same_bits(
    stand_in: Callable[[str], Path], launcher: Launcher
) -> None:
    """GPT-2 ties the weights of its first and last layer: they must stay tied through a checkpoint."""
    values = {
        "dataset": "austen",
        "model": "hf_causal",
        "pretrained_path": str(stand_in("gpt2")),
        "sequence_length": 32,
        "batch_size": 8,
        "learning_rate": 3e-3,
        "eval_every_steps": 10**6,
        "checkpoint_every_steps": 12,
        "keep_last_checkpoints": None,
    }
    live = launcher.start(max_steps=24, **values).finish()
    losses = live.losses()
    assert losses[1] == pytest.approx(torch.tensor(float(NUM_TOKENS)).log().item(), abs=0.3), (
        "it knows nothing"
    )
    assert losses[24] < losses[1] - 0.5
    [sample] = [event for event in live.events("sample") if event["step"] == 24]
    assert sample["type"] == "text"
    assert len(sample["content"]) > 20
    again = launcher.start_run(live.run, resume_step=12).finish().losses()
    assert {step: again[step] for step in range(13, 25)} == {step: losses[step] for step in range(13, 25)}
    sharded = launcher.start(max_steps=12, strategy="zero3", **values).finish().losses()
    assert sharded == pytest.approx({step: losses[step] for step in range(1, 13)}, rel=1e-4)


@needs_timm
def test_timm_network_learns_digits_on_two_ranks(launcher: Launcher) -> None:
    size = {"model": "timm_image", "model_size": "mobilenetv3_small_050"}
    live = launcher.start(**size, num_epochs=2, learning_rate=3e-3).finish()
    losses = live.losses()
    assert losses[max(losses)] < 1.0 < losses[1]


@needs_transformers
def test_wrong_folder_ends_a_run_with_words_and_not_with_a_traceback(launcher: Launcher) -> None:
    live = launcher.start(dataset="austen", model="hf_causal", pretrained_path="openai-community/gpt2")
    assert live.wait_for_end().state == "failed"
    [error] = live.events("error")
    assert "pretrained_path is 'openai-community/gpt2', which is not on this machine" in error["message"]
    assert "hf download openai-community/gpt2" in error["message"]
