import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Sequences(Dataset):
    def __init__(self, num_sequences=64, length=16, vocabulary=32):
        self.tokens = torch.randint(vocabulary, (num_sequences, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Losses(TrainerCallback):
    def __init__(self):
        self.values = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.values.append(logs["loss"])


def main():
    set_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir="output",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    losses = Losses()
    trainer = Trainer(model=model, args=args, train_dataset=Sequences(), callbacks=[losses])
    trainer.train()
    with open(f"{os.environ['LOSSES']}.{args.process_index}", "w") as file:
        file.writelines(f"{float(loss).hex()}\n" for loss in losses.values)


if __name__ == "__main__":
    main()
