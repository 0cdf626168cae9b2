"""Writes a trained network as ONNX, with weights of 8 bits where that is wanted. Needs PyTorch and ONNX."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import torch

from .network import LengthNetwork
from .predictor import EMBEDDING, EXCEEDS, IDS, MASK, session
from .prompt_tokens import Batch

PRECISIONS = ("int8", "float32")
_OPSET = 17
_TOLERANCE = 1e-3  # of a probability, between PyTorch and ONNX Runtime
_AXES = {
    IDS: ["prompt", "chunk", "token"],
    MASK: ["prompt", "chunk", "token"],
    EXCEEDS: ["prompt"],
    EMBEDDING: ["prompt"],
}


class ExportFailed(RuntimeError):
    """The exported model says something else than the trained one did."""


def write_onnx(network: LengthNetwork, samples: list[Batch], path: Path, precision: str) -> None:
    """Writes the model, after a check that it says of all samples, whatever their shape, what the network says.

    Weights of 8 bits are one of each channel's 128 levels of 7 bits, which add up without overflow on processors
    without VNNI; activations are quantised as they come (dynamic quantisation).
    """
    exact = path.with_suffix(".exact") if precision == "int8" else path
    first = samples[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing: shapes are checked below
        torch.onnx.export(
            network.eval(),
            (torch.from_numpy(first.ids), torch.from_numpy(first.mask)),
            str(exact),
            input_names=[IDS, MASK],
            output_names=[EXCEEDS, EMBEDDING],
            dynamic_axes={name: dict(enumerate(axes)) for name, axes in _AXES.items()},
            opset_version=_OPSET,
            dynamo=False,
        )
    _compare(network, samples, exact)
    if precision == "int8":
        _quantise(exact, path)
        exact.unlink()


def _compare(network: LengthNetwork, samples: list[Batch], path: Path) -> None:
    found = session(path.read_bytes())
    for sample in samples:
        with torch.inference_mode():
            wanted = network(torch.from_numpy(sample.ids), torch.from_numpy(sample.mask))[0].numpy()
        got = found.run([EXCEEDS], {IDS: sample.ids, MASK: sample.mask})[0]
        if (off := float(np.abs(got - wanted).max())) > _TOLERANCE:
            raise ExportFailed(f"the exported model is off by {off:.3f} at a shape of {sample.ids.shape}")


def _quantise(exact: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # it advises a pre-processing that changes nothing here
    try:
        quantize_dynamic(exact, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    finally:
        logging.disable(logging.NOTSET)
