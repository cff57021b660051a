#!/usr/bin/env bash
# Build Horovod from the registry's source package into the environment of a Python:
#     envs/install_horovod.sh .venv/bin/python
# CPU build on gloo; needs a C++ compiler, takes minutes. A GPU build: docs/training.md.
# Horovod 0.28.1 asks for C++14 at the end of its compiler lines and torch needs C++20,
# hence the wrapper that adds the last word.
set -euo pipefail
python=$1
version=0.28.1

if "$python" -c 'import horovod.torch' 2>/dev/null; then
  exit 0
fi
if ! command -v g++ >/dev/null; then
  echo "Horovod not installed: no g++ (training runs with torch.distributed; tests of Horovod skip)"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#!/bin/sh\nexec g++ "$@" -std=c++20\n' >"$folder/g++20"
chmod +x "$folder/g++20"
echo "Building Horovod $version (about four minutes on two cores)"
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1
export HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="-j$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)" CXX="$folder/g++20"
export PATH="$(dirname "$python"):$PATH"  # the environment's cmake
if ! "$python" -m pip install --quiet --no-build-isolation --no-deps "horovod==$version" \
  >"$folder/log" 2>&1; then
  grep -m 1 -A 3 'CMake Error' "$folder/log" || tail -n 15 "$folder/log"
  echo "Horovod not installed: its build failed (training runs with torch.distributed; tests of Horovod skip)"
fi
