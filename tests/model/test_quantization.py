"""The rules of the five quantization schemes (spec/quantization.md)."""

import math

import pytest

import hurray_wire as hw


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: hw.PerTensorAffine(0.0, 0), "quantization.scale"),
        (lambda: hw.PerTensorAffine(math.inf, 0), "quantization.scale"),
        (lambda: hw.PerTensorAffine(math.nan, 0), "quantization.scale"),
        (lambda: hw.PerTensorAffine(1e39, 0), "quantization.scale"),  # infinite as float32
        (lambda: hw.PerTensorAffine(1e-60, 0), "quantization.scale"),  # 0 as float32
        (lambda: hw.PerTensorAffine(1.0, 1 << 31), "quantization.zero-point"),
        (lambda: hw.PerChannelAffine.symmetric(-1, 1), "quantization.axis"),
        (lambda: hw.PerChannelAffine.asymmetric(0, 1, 0xFFFFFFFF), "quantization.buffer-index"),
        (lambda: hw.PerBlockAffine.symmetric(0, 1, 1, hw.float32), "quantization.block-size"),
        (lambda: hw.PerBlockAffine.symmetric(0, 12, 1, hw.float32), "quantization.block-size"),
        (lambda: hw.PerBlockAffine.symmetric(0, 16, 1, hw.float64), "quantization.scale-type"),
        (lambda: hw.Nf4(0, 4, 1), "quantization.block-size"),
        (lambda: hw.Mxfp(0, 8, 1), "quantization.block-size"),
        (lambda: hw.Mxfp(0, 4096, 1), "quantization.block-size"),
    ],
)
def test_parameters_that_no_tensor_could_have_are_refused_by_their_rule(make, rule):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        make()
    assert caught.value.rule == rule


def quantized(element_type, shape, scheme, *parameter_bytes, data_bytes=1 << 16):
    return hw.TensorDescriptor.build(
        element_type, shape, hw.RowMajorLayout(), (data_bytes, *parameter_bytes), quantization=scheme
    )


@pytest.mark.parametrize(
    ("element_type", "shape", "scheme", "parameter_bytes"),
    [
        (hw.uint8, (4, 6), hw.PerTensorAffine(0.5, 255), ()),
        (hw.int32, (4, 6), hw.PerTensorAffine(0.5, -5), ()),
        (hw.int8, (4, 6), hw.PerChannelAffine.symmetric(1, 1), (24,)),
        (hw.int8, (4, 6), hw.PerChannelAffine.asymmetric(1, 1, 2), (24, 24)),
        (hw.int8, (4, 6), hw.PerChannelAffine.asymmetric(1, 1, 1), (48,)),  # scales, then zero points, in one buffer
        (hw.int4, (4, 6), hw.PerBlockAffine.symmetric(1, 4, 1, hw.float16), (16,)),  # 4 rows x 2 blocks x 2 bytes
        (hw.uint4, (4, 16), hw.Nf4(1, 8, 1), (32,)),
        (hw.float8_e4m3, (4, 32), hw.Mxfp(1, 16, 1), (8,)),
    ],
)
def test_a_scheme_that_fits_its_tensor_is_accepted(element_type, shape, scheme, parameter_bytes):
    made = quantized(element_type, shape, scheme, *parameter_bytes)
    assert hw.TensorDescriptor.decode(made.encode()) == made


@pytest.mark.parametrize(
    ("element_type", "shape", "scheme", "parameter_bytes", "rule"),
    [
        (hw.float8_e4m3, (4, 6), hw.PerTensorAffine(0.5, 0), (), "quantization.storage"),
        (hw.int16, (4, 6), hw.PerBlockAffine.symmetric(1, 4, 1, hw.float16), (16,), "quantization.storage"),
        (hw.int4, (4, 16), hw.Nf4(1, 8, 1), (32,), "quantization.storage"),
        (hw.uint8, (4, 6), hw.PerTensorAffine(0.5, 256), (), "quantization.zero-point"),
        (hw.uint8, (4, 6), hw.PerTensorAffine(0.5, -1), (), "quantization.zero-point"),
        (hw.int8, (4, 6), hw.PerChannelAffine.symmetric(2, 1), (24,), "quantization.axis"),
        (hw.int8, (4, 6), hw.PerChannelAffine.symmetric(1, 2), (24,), "quantization.buffer-index"),
        (hw.int8, (4, 6), hw.PerChannelAffine.symmetric(1, 0), (24,), "quantization.buffer-index"),
        (hw.int8, (4, 6), hw.PerChannelAffine.symmetric(1, 1), (23,), "buffer.too-small"),
        (hw.int8, (4, 6), hw.PerChannelAffine.asymmetric(1, 1, 1), (47,), "buffer.too-small"),
        (hw.float8_e4m3, (4, 24), hw.Mxfp(1, 16, 1), (8,), "quantization.mxfp-multiple"),
        (hw.float8_e4m3, (4, 0), hw.Mxfp(1, 16, 1), (8,), "quantization.mxfp-multiple"),
        (hw.int8, (4, 6), hw.PerTensorAffine(0.5, 0), (24,), "descriptor.buffer-count"),
    ],
)
def test_a_scheme_that_does_not_fit_its_tensor_is_refused_by_its_rule(
    element_type, shape, scheme, parameter_bytes, rule
):
    with pytest.raises((hw.InvalidDescriptorError, hw.BufferSizeError)) as caught:
        quantized(element_type, shape, scheme, *parameter_bytes)
    assert caught.value.rule == rule


def test_page_slots_carry_their_own_scales():
    layout = hw.BlockPagedLayout(4, 5, 0, 2)
    scheme = hw.PerBlockAffine.asymmetric(0, 4, 3, 4, hw.float16)
    sizes = [5 * 4 * 2 * 8, 12, 12, 5 * 4 * 2, 5 * 4 * 4]  # 20 page slots: float16 scales, int32 zero points
    hw.TensorDescriptor.build(hw.int8, (9, 2, 8), layout, sizes, quantization=scheme)
    sizes[3] -= 2
    with pytest.raises(hw.BufferSizeError, match="buffer 3"):
        hw.TensorDescriptor.build(hw.int8, (9, 2, 8), layout, sizes, quantization=scheme)
