"""A Lightning run of the small GPT, with validation."""

import logging
import sys
import warnings

import lightning
import torch
from gpt import GPT, loss_of
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT()

    def training_step(self, batch, number):
        loss = loss_of(self.model, batch[0])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        self.log("val", loss_of(self.model, batch[0]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
lightning.seed_everything(0, workers=True, verbose=False)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
train = DataLoader(TensorDataset(torch.randint(0, 64, (16, 17))), batch_size=4, shuffle=True)
check = DataLoader(TensorDataset(torch.randint(0, 64, (8, 17))), batch_size=4)
trainer = lightning.Trainer(
    max_steps=steps, val_check_interval=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
    gradient_clip_val=1.0, num_sanity_val_steps=1,
)  # fmt: skip
trainer.fit(Module(), train, check)
