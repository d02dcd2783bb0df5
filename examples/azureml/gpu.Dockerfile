# The image of gpu.yml and mnist-gpu.yml: AzureML's own base with CUDA, NCCL and Open MPI; PyTorch, mpienv and mnist on it.
# The compiler's Debian is older than the base's Ubuntu: what it links runs on both.
FROM rust:1.89-bullseye AS build
WORKDIR /mpienv
COPY . .
RUN cargo build --release --package mpienv --features gpu --locked \
    && cargo build --release --package mpienv-trainer --features cuda --locked

# AzureML keeps its bases patched under this tag.
# hadolint ignore=DL3007
FROM mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04:latest
# hadolint ignore=DL3013
RUN pip install --no-cache-dir torch numpy
COPY --from=build /mpienv/target/release/mpienv /mpienv/target/release/mnist /usr/local/bin/
