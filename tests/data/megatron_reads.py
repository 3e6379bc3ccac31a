"""Run as a process: what megatron-core writes and reads, for test_indexed.py.

    python megatron_reads.py FOLDER

What is wanted stands in FOLDER/wanted.json. Writes its documents as FOLDER/theirs-DTYPE.* for each
of its dtypes; FOLDER/ours.*, as it reads them, as FOLDER/read.npz; and for each of its cases the
samples of the GPTDataset as FOLDER/samples-N.npy. A part without a token would never end there.
"""

import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split


def write(folder: Path, dtypes: list, documents: list) -> None:
    for dtype in dtypes:
        prefix = folder / f"theirs-{dtype}"
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=getattr(np, dtype))
        for document in documents:
            for sequence in document:
                builder.add_item(torch.tensor(sequence, dtype=torch.int64))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
    one = IndexedDatasetBuilder(str(folder / "modes.bin"), dtype=np.int32, multimodal=True)
    one.add_item(torch.tensor([1, 2]), mode=1)
    one.end_document()
    one.finalize(str(folder / "modes.idx"))


def read(folder: Path) -> None:
    dataset = IndexedDataset(str(folder / "ours"))
    sequences = [dataset[number] for number in range(len(dataset))]
    np.savez(
        folder / "read.npz",
        dtype=np.array(str(np.dtype(dataset.index.dtype))),
        documents=dataset.document_indices,
        lengths=[len(sequence) for sequence in sequences],
        tokens=np.concatenate(sequences),
    )


def sample(folder: Path, cases: list) -> None:
    for number, case in enumerate(cases):
        samples = gpt_dataset(folder, case)
        shown = [samples._query_document_sample_shuffle_indices(i)[0] for i in range(len(samples))]
        np.save(folder / f"samples-{number}.npy", np.stack(shown))


def split(folder: Path, splits: list) -> None:
    ranges = []
    for words, sequences in splits:
        matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(words))
        ends = [part and [round(e * float(sequences)) for e in part] for part in matrix]
        ranges.append([part if part and part[0] < part[1] else None for part in ends])
    (folder / "splits.json").write_text(json.dumps(ranges))


def gpt_dataset(folder: Path, case: dict) -> GPTDataset:
    config = GPTDatasetConfig(
        random_seed=case["seed"],
        sequence_length=case["length"],
        blend=([str(folder / case["name"])], None),
        split=case["split"],
        path_to_cache=str(folder / "cache"),
        tokenizer=types.SimpleNamespace(
            vocab_size=257, eod=256, unique_identifiers={"class": "bytes"}
        ),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    sizes = [case["samples"] if case["part"] == part else 1 for part in range(3)]
    builder = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config)
    dataset = builder.build()[case["part"]]
    assert dataset.index_split is list(Split)[case["part"]]
    return dataset


if __name__ == "__main__":
    place = Path(sys.argv[1])
    wanted = json.loads((place / "wanted.json").read_text())
    write(place, wanted["dtypes"], wanted["documents"])
    read(place)
    split(place, wanted["splits"])
    sample(place, wanted["cases"])
