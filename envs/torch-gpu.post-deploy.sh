#!/usr/bin/env bash
# Horovod for GPUs, built into the environment that conda has just made of torch-gpu.yaml.
# Snakemake runs this inside that environment. NCCL is the one that torch's wheels bring.
set -euo pipefail
version=0.28.1
site=$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
if [[ ! -d $site/nvidia/nccl ]]; then
  echo "torch without CUDA: Horovod is not built, ranks are joined by torch.distributed"
  exit 0
fi
if ! command -v nvcc >/dev/null; then
  echo "no CUDA compiler (nvcc): Horovod is not built, ranks are joined by torch.distributed"
  exit 0
fi
# Horovod asks for C++14 at the end of its compiler lines and torch needs C++20, hence the
# wrapper that adds the last word.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#!/bin/sh\nexec "%s" "$@" -std=c++20\n' "${CXX:-g++}" >"$folder/g++20"
chmod +x "$folder/g++20"
# The wheel names its library libnccl.so.2 only; the linker looks for libnccl.so.
mkdir "$folder/lib"
ln -s "$site/nvidia/nccl/lib/libnccl.so.2" "$folder/lib/libnccl.so"
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1
export HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED
export HOROVOD_NCCL_INCLUDE="$site/nvidia/nccl/include" HOROVOD_NCCL_LIB="$folder/lib"
export CMAKE_POLICY_VERSION_MINIMUM=3.5 CXX="$folder/g++20"
python -m pip install --no-build-isolation --no-deps "horovod==$version"
