"""Traces that others published: where each is, as what, and on whose terms. None of them comes with the product."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublicTrace:
    """`sha256` and `bytes` are of the file as published."""

    title: str
    url: str
    sha256: str
    bytes: int
    licence: str


# The checksum is of the file in the repository (as of its commit 790921015d50).
PUBLIC_TRACES = {
    "azure-2023-conv": PublicTrace(
        title="the Azure conversation hour of 2023",
        url="https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_conv.csv",
        sha256="2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        bytes=719_188,
        licence="CC-BY, Microsoft Azure; cite Splitwise (ISCA 2024)",
    )
}
