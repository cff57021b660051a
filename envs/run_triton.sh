#!/usr/bin/env bash
# Run the Triton Inference Server of an environment that install_triton.sh has made:
#     envs/run_triton.sh <environment> <model repository> [options of tritonserver]
set -euo pipefail
environment=$1
repository=$2
shift 2

# The backend's stub embeds the Python that it finds first, and needs its library.
libraries=$("$environment/bin/python" -c \
  'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
export PATH="$environment/bin:$PATH" LD_LIBRARY_PATH="$libraries:${LD_LIBRARY_PATH:-}"
exec "$environment/triton/tritonserver" --model-repository "$repository" \
  --backend-directory "$environment/triton/backends" "$@"
