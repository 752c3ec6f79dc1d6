"""LoRA with the optional packages: real ranks on stand-ins with random weights, resume, export and starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.harness import END_TIMEOUT_S, Launcher, run_to_end
from tests.integration.test_finetune import needs, spec, write_stand_in
from tests.integration.test_start_from import UNCHANGED
from tests.integration.test_start_from import start as start_from_step_1
from tests.unit.trained_runs import leave_trained_run
from trainers.checkpoint import loaded_state
from trainers.contract.rundir import RunDirectory
from trainers.models import hf_text
from trainers.models.networks import lora, pretrained
from trainers.predict import take_home, trained_model
from trainers.registry import ModelOptions

pytestmark = [pytest.mark.integration, needs("transformers"), needs("peft")]

RANK, WIDTH, LAYERS = 4, 32, 2
# Adapters of BERT's query and value, and of GPT-2's matrix for query, key and value.
NUM_ADAPTERS = {
    "hf_text": LAYERS * 2 * RANK * (WIDTH + WIDTH),
    "hf_causal": LAYERS * RANK * (WIDTH + 3 * WIDTH),
}
DATA = {"hf_text": ("bert", "austen_novels"), "hf_causal": ("gpt2", "austen")}


def values_of(model: str, folder: Path, **more: Any) -> dict[str, Any]:
    kind, dataset = DATA[model]
    path = write_stand_in(folder / kind, kind)
    values = {"model": model, "dataset": dataset, "pretrained_path": str(path), "lora_rank": RANK}
    return values | {"sequence_length": 32, "batch_size": 8, "learning_rate": 0.01} | more


def weights_of(run: RunDirectory) -> dict[str, Tensor]:
    return loaded_state.read_weights(run.list_checkpoints()[-1].path)


@pytest.mark.parametrize("model", DATA)
def test_only_adapters_learn_and_the_merged_model_needs_no_peft(
    model: str, launcher: Launcher, tmp_path: Path
) -> None:
    values = values_of(model, tmp_path, max_steps=24, checkpoint_every_steps=12, keep_last_checkpoints=None)
    live = launcher.start(**values).finish()
    losses, weights = live.losses(), weights_of(live.run)
    assert sum(losses[step] for step in range(19, 25)) < sum(losses[step] for step in range(1, 7))
    before = load_file(Path(values["pretrained_path"]) / "model.safetensors")
    adapters = {name: each for name, each in weights.items() if "lora_" in name}
    assert sum(each.numel() for each in adapters.values()) == NUM_ADAPTERS[model]
    assert all(bool(each.any()) for name, each in adapters.items() if "lora_B" in name), "they start at zero"
    # Without the names of our wrapper and of peft, the weights are those of the folder.
    base = {
        name.replace(".base_layer", "").removeprefix("reader.").removeprefix("writer."): each
        for name, each in weights.items()
        if name not in adapters and not name.startswith(("scores.", "writer.lm_head."))  # the latter is tied
    }
    assert len(base) > 20
    for name, each in base.items():
        assert torch.equal(each, before[name if name in before else f"bert.{name}"]), name
    [plan] = live.events("plan")
    head = sum(each.numel() for name, each in weights.items() if name.startswith("scores."))
    assert plan["num_trained"] == NUM_ADAPTERS[model] + head < plan["num_parameters"] / 5

    again = launcher.start_run(live.run, resume_step=12).finish()
    assert again.losses() == {step: loss for step, loss in losses.items() if step > 12}
    assert all(torch.equal(each, weights[name]) for name, each in weights_of(live.run).items())
    check_export(live.run, tmp_path / "home")


def check_export(run: RunDirectory, home: Path) -> None:
    """Compare the exported model, loaded by transformers, with the run's own."""
    transformers = pretrained.import_transformers(offline=True)
    with_adapters = trained_model.load(run, run.list_checkpoints()[-1])
    home.mkdir()
    facts = take_home.fill(run, None, home, lambda _: None)
    assert max(facts["differences"].values()) < 1e-4
    assert facts["about"]["model"]["lora_rank"] == RANK
    files = {
        name: load_file(home / name) for name in ("weights.safetensors", "huggingface/model.safetensors")
    }
    assert not [name for names in files.values() for name in names if "lora" in name or "base_layer" in name]
    assert not (home / "huggingface" / "adapter_config.json").exists()
    exit_code, said = run_to_end([sys.executable, str(home / "predict.py")], END_TIMEOUT_S)
    assert exit_code == 0 and said, said
    tokens = torch.randint(3, 300, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = with_adapters.network(tokens)
        if with_adapters.about["model"]["name"] == "hf_causal":
            loaded = transformers.AutoModelForCausalLM.from_pretrained(home / "huggingface").eval()
            scores = loaded(tokens).logits[..., : expected.shape[-1]]
        else:
            loaded = transformers.AutoModel.from_pretrained(home / "huggingface").eval()
            mean = loaded(tokens).last_hidden_state.mean(1)
            head = files["weights.safetensors"]
            scores = mean @ head["scores.weight"].T + head["scores.bias"]
    assert expected.std() > 0.01
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)


def test_a_sharded_strategy_trains_the_same_adapters(launcher: Launcher, tmp_path: Path) -> None:
    """GPT-2 without dropout: its random numbers would differ between strategies."""
    values = values_of("hf_causal", tmp_path, max_steps=6)
    plain = launcher.start(**values).finish()
    sharded = launcher.start(**values, strategy="zero3").finish()
    assert sharded.losses() == pytest.approx(plain.losses(), rel=1e-4)
    expected = weights_of(plain.run)
    for name, each in weights_of(sharded.run).items():
        torch.testing.assert_close(each, expected[name], atol=1e-3 if "lora_" in name else 0, rtol=0)
    again = launcher.start_run(sharded.run, resume_step=6).finish()
    assert again.losses() == {}


def test_a_run_continues_the_adapters_of_another_one_on_other_classes(
    launcher: Launcher, tmp_path: Path
) -> None:
    values = values_of("hf_text", tmp_path)
    source = leave_trained_run(launcher.runs_dir, values.pop("dataset"), values.pop("model"), **values)[0]
    rows = [
        f"the {'good' if row % 2 else 'bad'} film {row},{'yes' if row % 2 else 'no'}" for row in range(60)
    ]
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    own = {"dataset": "own", "data_path": str(tmp_path / "texts.csv")}
    live = start_from_step_1(launcher, source, **values | UNCHANGED | own)
    assert live.events("plan")[-1]["start"]["replaced"] == ["scores.weight", "scores.bias"]
    before, now = weights_of(source), weights_of(live.run)
    assert any("lora_A" in name for name in before)
    for name, each in before.items():
        if not name.startswith("scores."):
            torch.testing.assert_close(now[name], each, atol=1e-6, rtol=0)
    about = trained_model.load(live.run, live.run.list_checkpoints()[-1]).about
    assert about["model"]["lora_rank"] == RANK


def test_the_output_layer_of_a_classifier_is_trained_in_full(tmp_path: Path) -> None:
    folder = write_stand_in(tmp_path / "classifier", "classifier")
    network = hf_text.build(spec(num_classes=3), ModelOptions(pretrained_path=str(folder), lora_rank=RANK))
    trained = {name for name, each in network.named_parameters() if each.requires_grad}
    assert {"classifier.classifier.weight", "classifier.classifier.bias"} < trained
    assert all("lora_" in name for name in trained if not name.startswith("classifier.classifier."))


def test_all_linear_layers_of_an_unknown_architecture_are_adapted(tmp_path: Path) -> None:
    transformers = pretrained.import_transformers(offline=True)
    folder = write_stand_in(tmp_path / "bert", "bert")  # for its tokenizer
    shape = transformers.DistilBertConfig(
        vocab_size=400, dim=WIDTH, hidden_dim=64, n_layers=1, n_heads=2, max_position_embeddings=64
    )
    transformers.DistilBertModel(shape).save_pretrained(folder)
    network = hf_text.build(spec(), ModelOptions(pretrained_path=str(folder), lora_rank=RANK)).eval()
    adapted = {name for name in network.state_dict() if "lora_A" in name}
    assert len(adapted) == 6, "query, key, value, output, and two of the feed-forward part"
    for name, parameter in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(3, 400, (2, 16))
    with torch.no_grad():
        before = network(tokens)
        lora.merge_adapters(network)
        torch.testing.assert_close(network(tokens), before, atol=1e-5, rtol=0)
    assert not [name for name in network.state_dict() if "lora_" in name]
