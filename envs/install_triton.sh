#!/usr/bin/env bash
# Make an environment with the Triton Inference Server and what packaged models need:
#     envs/install_triton.sh <python 3.11 or 3.12> <folder>
# The server and its Python backend come with the wheel nvidia-pytriton, which needs
# numpy below 2; all other versions are those of requirements.lock.
set -euo pipefail
python=$1
environment=$2
here=$(cd "$(dirname "$0")/.." && pwd)

test -x "$environment/bin/python" || "$python" -m venv "$environment"
locked=$(grep -iE '^(torch|numba|lhotse|kaldifst|pydantic|PyYAML|safetensors|soundfile|tqdm|websockets)==' \
  "$here/requirements.lock" | cut -d ' ' -f 1)
# shellcheck disable=SC2086 # a word a requirement
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
  nvidia-pytriton==0.7.0 'tritonclient[grpc]' 'numpy<2' pandas silero-vad praatio $locked

site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$here/src" >"$site/latflow.pth"  # this checkout, as it is

# The backend looks for its stub, one a version of Python, beside itself; a copy of the
# stub would not find its libraries.
server=$site/pytriton/tritonserver
version=$("$environment/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
backend="$environment/triton/backends/python"
mkdir -p "$backend"
ln -sf "$server"/backends/python/* "$server/python_backend_stubs/$version"/* "$backend/"
ln -sfn "$server/bin/tritonserver" "$environment/triton/tritonserver"
