"""Tokens after a copied block have the bits of tokens after a computed one, in every precision of both executors."""

from __future__ import annotations

import numpy as np
import pytest
from support.decoders import (
    CACHE_DTYPES,
    PRECISIONS,
    Piece,
    Seats,
    Setting,
    Shape,
    compiled_decoder,
    paddle_decoder,
    run,
)

EXECUTORS = {"compiled": compiled_decoder, "paddle": paddle_decoder}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("quantization", PRECISIONS)
@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
def test_tokens_after_a_copied_beginning_have_the_bits_of_those_after_a_computed_one(
    executor: str, quantization: str | None, cache_dtype: str
) -> None:
    if executor == "paddle" and quantization == "bfloat16":
        pytest.skip("the compiled operators alone compute in bfloat16")
    shape, setting = Shape(), Setting(quantization, cache_dtype, block_size=20)
    decoder = EXECUTORS[executor](shape, setting)
    copy = decoder.block_copier()
    assert copy is not None
    trunk = np.random.default_rng(5).integers(shape.vocab, size=40)
    for cut in (1, 19, 25):
        branch = np.concatenate([trunk[:cut], (trunk[cut:] + 1) % shape.vocab])
        seats = Seats([trunk, branch, branch], setting.block_size, [7, 2, 9, 4, 3, 8])
        # Cut alike, since Paddle's own products round by the number of rows.
        for piece in (Piece(0, 0, cut, 1), Piece(0, cut, 40, 1), Piece(2, 0, cut, 1)):
            run(decoder, seats, [piece])
        (original,) = run(decoder, seats, [Piece(0, 39, 40, 1)])
        for source, target in zip(seats.tables[0], seats.tables[1], strict=True):
            copy(int(source), int(target))
        rest = 40 - cut
        (after_copy,) = run(decoder, seats, [Piece(1, cut, 40, rest)])
        (computed,) = run(decoder, seats, [Piece(2, cut, 40, rest)])
        np.testing.assert_array_equal(after_copy, computed)
        np.testing.assert_array_equal(run(decoder, seats, [Piece(0, 39, 40, 1)])[0], original)
