# mpienv and the trainer on NVIDIA's image with NVRTC and NCCL. The host gives the driver.
#   docker build --file examples/docker/gpu.Dockerfile --tag mpienv-gpu:0.1.0 .
#   docker run --rm --gpus all --ipc=host mpienv-gpu:0.1.0 mpienv launch --nproc-per-node gpu -- mnist --device cuda
# The compiler's Debian is older than the image's Ubuntu: what it links runs on both.
FROM rust:1.89-slim-bullseye AS build
WORKDIR /mpienv
COPY . .
RUN cargo build --release --package mpienv --features gpu --locked \
    && cargo build --release --package mpienv-trainer --features cuda --locked

FROM nvidia/cuda:12.8.1-runtime-ubuntu22.04
COPY --from=build /mpienv/target/release/mpienv /mpienv/target/release/mnist /usr/local/bin/
USER 1000
WORKDIR /tmp
CMD ["mnist", "--device", "cuda"]
