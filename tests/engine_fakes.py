"""A tiny recipe on a tiny corpus, built in this process."""

from bitstep.data.corpus import Corpus
from bitstep.launch.worker import join, settle
from bitstep.train.build import build
from bitstep.train.layout import Layout
from bitstep.train.recipe import load

TINY = [
    "model.hidden=16",
    "model.mamba_heads=2",
    "model.mamba_head_dim=8",
    "model.mamba_state=4",
    "model.chunk=8",
    "model.heads=2",
    "model.kv_heads=1",
    "model.head_dim=8",
    "model.mlp_width=24",
    "model.experts=3",
    "model.expert_width=8",
    "model.shared_width=8",
    "data.sequence=20",
    "layout.fan_ins=[2, 2]",
    "schedule.warmup=2",
    "run.steps=6",
    "run.eval_every=0",
    "run.save_every=0",
    "run.eval_sequences=2",
]


def tiny_recipe(folder, *changes):
    return load("nano", [*TINY, f"data.folder={str(folder)!r}", "data.held_out=0.3", *changes])


def tiny_engine(folder, *changes, fault=None):
    recipe = tiny_recipe(folder, *changes)
    settle(recipe.layout.threads)
    processes = join()
    corpus = Corpus.read(recipe.data.folder, held_out=recipe.data.held_out)
    layout = Layout(recipe.layout.fan_ins, 1, 0, 1)
    return build(recipe, layout, processes, corpus, fault)


def write_corpus(folder):
    folder.mkdir(exist_ok=True)
    for number in range(12):
        text = "".join(f"line {line} of document {number}\n" for line in range(20 + number))
        (folder / f"document-{number:02d}.txt").write_text(text)
    return folder
