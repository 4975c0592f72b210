"""What a GPU's datasheet states, each with the unit it is in and the bounds that show when it is in another."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# Bounds that any GPU of these years keeps with room to spare; what lies outside is in another unit.
Gigabytes = Annotated[
    float, Field(ge=1, le=10_000, strict=True, description="a size in GB, from 1 to 10,000 (80 GB is 80)")
]
Gibibytes = Annotated[
    float, Field(ge=1, le=10_000, strict=True, description="a size in GiB, from 1 to 10,000 (81,088 MiB is 79.19)")
]
Mebibytes = Annotated[
    float, Field(ge=1_000, le=10_000_000, strict=True, description="a size in MiB, from 1,000 to 10,000,000")
]
Bandwidth = Annotated[
    float,
    Field(
        ge=10,
        le=100_000,
        strict=True,
        description="a bandwidth in GB/s, from 10 to 100,000 (less looks like TB/s: 1.5 TB/s is 1500)",
    ),
]
LinkBandwidth = Annotated[
    float,
    Field(ge=1, le=10_000, strict=True, description="GB/s in one direction, from 1 to 10,000 (0.9 TB/s is 900)"),
]
PcieBandwidth = Annotated[
    float,
    Field(ge=0.5, le=1_000, strict=True, description="GB/s in one direction, from 0.5 to 1,000 (PCIe 5.0 x16 is 64)"),
]
NetworkRate = Annotated[
    float, Field(ge=1, le=100_000, strict=True, description="Gbit/s for one GPU, from 1 to 100,000 (50 GB/s is 400)")
]
Tflops = Annotated[
    float,
    Field(ge=0.1, le=1_000_000, strict=True, description="TFLOPS, from 0.1 to 1,000,000 (1.98 PFLOPS is 1980)"),
]
Watts = Annotated[float, Field(ge=10, le=5_000, strict=True, description="watts, from 10 to 5,000 (0.7 kW is 700)")]
LEAST_USD_PER_HOUR, MOST_USD_PER_HOUR = 0.001, 1_000
UsdPerHour = Annotated[
    float,
    Field(
        ge=LEAST_USD_PER_HOUR,
        le=MOST_USD_PER_HOUR,
        strict=True,
        description=f"$ for one GPU and hour, from {LEAST_USD_PER_HOUR:g} to {MOST_USD_PER_HOUR:,}",
    ),
]
