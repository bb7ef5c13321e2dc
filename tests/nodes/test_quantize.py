"""Numbers in eight and four bits and back, on whatever CPU this runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from nodes import quantize


def weights(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.02


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (100, 96), (7, 64), (1100, 288)])
def test_int8_and_int4_rows_come_back_as_near_as_their_bits_allow(rows: int, columns: int) -> None:
    dense, every = weights(rows, columns), torch.arange(rows)
    int8, int4 = quantize.to_int8(dense), quantize.to_int4(dense)
    assert relative(quantize.int8_rows(int8, every), dense) < 0.01
    assert relative(quantize.int4_rows(int4, every), dense) < 0.09


def test_the_error_told_is_the_error_there_is() -> None:
    dense, every = weights(300, 160), torch.arange(300)
    int8, int4 = quantize.to_int8(dense), quantize.to_int4(dense)
    assert int8.error.relative == pytest.approx(relative(quantize.int8_rows(int8, every), dense), rel=1e-3)
    assert int4.error.relative == pytest.approx(relative(quantize.int4_rows(int4, every), dense), rel=1e-3)


def test_numbers_of_a_4_bit_file_stay_nearly_what_they_are() -> None:
    steps = torch.rand(128, 3, 1, generator=torch.Generator().manual_seed(1)) * 0.01 + 0.001
    values = torch.randint(0, 16, (128, 3, 32), generator=torch.Generator().manual_seed(2))
    values[..., 0], values[..., 1] = 0, 15  # such files take a block's least and greatest number for its ends
    dense = (values * steps - 0.05).flatten(1).to(torch.bfloat16)
    assert quantize.to_int4(dense).error.relative < 0.01


def test_rows_are_taken_by_their_numbers() -> None:
    dense = weights(200, 64)
    numbers = torch.tensor([199, 0, 63, 64, 64, 131])
    for rows, matrix in (
        (quantize.int8_rows(quantize.to_int8(dense), numbers), dense),
        (quantize.int4_rows(quantize.to_int4(dense), numbers), dense),
    ):
        assert relative(rows, matrix[numbers]) < 0.1


def test_unpacked_blocks_are_the_rows() -> None:
    matrix = quantize.to_int4(weights(256, 96))
    block = quantize.int4_layout().block
    blocks = slice(1, 256 // block)
    out = torch.empty(96, 256 - block, dtype=torch.bfloat16)
    quantize.unpack_int4(matrix, blocks, out)
    assert torch.equal(out.t(), quantize.int4_rows(matrix, torch.arange(block, 256)).to(torch.bfloat16))


def test_zeros_and_constants_stay_what_they_are() -> None:
    dense = torch.zeros(64, 64)
    dense[1] = 0.5
    for rows in (
        quantize.int8_rows(quantize.to_int8(dense), torch.arange(64)),
        quantize.int4_rows(quantize.to_int4(dense), torch.arange(64)),
    ):
        torch.testing.assert_close(rows, dense, rtol=0.005, atol=1e-6)


def test_lengths_that_the_operators_would_read_beyond_are_told_apart() -> None:
    assert quantize.can_be_quantized(weights(5, 64))
    assert not quantize.can_be_quantized(weights(64, 40))
    assert not quantize.can_be_quantized(torch.zeros(2, 64, 64))


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_cpus_with_fewer_instructions_pack_otherwise_and_are_understood(capability: str) -> None:
    script = (
        "import torch; from nodes import quantize, packed\n"
        "torch.manual_seed(0); dense = torch.randn(100, 64); x = torch.randn(100, 64).bfloat16()\n"
        "product = packed.Int4Linear(dense); rows = product.rows(torch.arange(100))\n"
        "for count in (3, 100):\n"
        "    torch.testing.assert_close(product(x[:count]).float(), x[:count].float() @ rows.t(), rtol=.02, atol=.1)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
