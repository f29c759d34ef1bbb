from __future__ import annotations

import numpy as np
import paddle

from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.attention.block_arguments import BlockArguments, BlockLayout
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape

MAX_MODEL_LEN = 100


def chunk(start: int, length: int, *blocks: int, outputs: int = 1) -> SequenceChunk:
    return SequenceChunk(np.arange(length) + 10 * start, start, np.array(blocks), outputs)


def test_one_pass_of_every_kind() -> None:
    """By hand, as the kernels read it."""
    chunks = [
        chunk(0, 3, 5),
        chunk(4, 2, 6, 7, outputs=0),
        chunk(9, 1, 8, 9, 10),
        chunk(0, 2, 11, outputs=2),
    ]
    made = BlockArguments.of(chunks, 4, MAX_MODEL_LEN)
    assert made.layout == BlockLayout(tokens=8, operator_tokens=6, seqs=4, operator_seqs=3, rows=4, width=3)
    assert (made.max_encoder_len, made.max_decoder_len) == (3, 9)
    assert made.rest == [chunks[1]]
    found = {name: array.tolist() for name, array in made.layout.views(made.packed).items()}
    assert found == {
        # Who generates, then the new prompts, then the one that goes on.
        "token_ids": [90, 0, 1, 2, 0, 1, 40, 41],
        "output_rows": [3, 0, 4, 5],
        "block_tables": [[8, 9, 10], [5, 0, 0], [11, 0, 0], [6, 7, 0]],
        "seq_lens_encoder": [[0], [3], [2]],
        "seq_lens_decoder": [[9], [0], [0]],
        "seq_lens_this_time": [[1], [3], [2]],
        "cum_offsets": [0, 99, 196],
        "padding_offsets": [0, 99, 99, 99, 196, 196],
        "cu_seqlens": [0, 1, 4, 6],
    }


def test_a_pass_without_the_operator_has_no_sequences_for_it() -> None:
    made = BlockArguments.of([chunk(4, 2, 6, 7)], 4, MAX_MODEL_LEN)
    assert (made.layout.operator_seqs, made.layout.operator_tokens) == (0, 0)
    assert (made.max_encoder_len, made.max_decoder_len) == (0, 0)


def test_the_parts_are_views_of_the_one_array_and_of_the_one_tensor() -> None:
    layout = BlockLayout(tokens=3, operator_tokens=2, seqs=2, operator_seqs=1, rows=1, width=2)
    host = np.zeros(layout.size, np.int32)
    device = paddle.zeros([layout.size], "int32")
    views, tensors = layout.views(host), layout.views(device)
    host[:] = np.arange(layout.size)
    device.copy_(paddle.to_tensor(host), True)
    assert sum(view.size for view in views.values()) == layout.size
    for name, view in views.items():
        assert tensors[name].numpy().tolist() == view.tolist()


def test_one_pass_of_every_kind_with_kernels() -> None:
    """New prompts are the operator's; the others follow in ascending length, with contexts and tiles."""
    chunks = [
        chunk(4, 20, 6, 7, outputs=0),
        chunk(0, 3, 5),
        chunk(9, 1, 8, 9),
        chunk(20, 2, 11, 12, outputs=2),
    ]
    made = BlockArguments.of(chunks, 16, MAX_MODEL_LEN, HeadShape(2, 1, 32))
    assert made.layout == BlockLayout(
        tokens=26, operator_tokens=3, seqs=4, operator_seqs=1, rows=4, width=2, tiles=1 + 1 + 1
    )
    assert (made.max_encoder_len, made.max_decoder_len) == (3, 0)
    assert made.rest == [chunks[2], chunks[3], chunks[0]]
    found = {name: array.tolist() for name, array in made.layout.views(made.packed).items()}
    assert found["output_rows"] == [2, 3, 4, 5]
    assert found["block_tables"] == [[5, 0], [8, 0], [11, 12], [6, 7]]
    assert found["seq_lens_encoder"] == [[3]]
    assert found["contexts"] == [10, 22, 24]
    assert found["first_rows"] == [0, 1, 3, 23]
    assert found["tiles"] == [[0, 0, 1], [1, 1, 2], [2, 3, 20]]
    assert made.plan is not None
    assert (made.plan.split_tiles, made.plan.split_rows, made.plan.most_splits) == (2, 3, 1)
