"""A Transformers Trainer on a tiny GPT-2 with random tokens."""

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Tokens(Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, at):
        return {"input_ids": self.ids[at], "labels": self.ids[at]}


torch.set_num_threads(1)
set_seed(0)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 4,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, seed=0,
    )  # fmt: skip
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens()).train()
