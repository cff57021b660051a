#!/usr/bin/env bash
# Make an environment with the Triton Inference Server and what packaged models need:
#     envs/install_triton.sh <python 3.11 or 3.12> <folder>
# The server and its Python backend come with the wheel nvidia-pytriton, which needs
# numpy below 2; all other versions are those of requirements.lock. A test compares the
# packages with what the backend and the load client import.
set -euo pipefail
python=$1
mkdir -p "$2"
environment=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)

test -x "$environment/bin/python" || "$python" -m venv "$environment"
locked=(kaldifst lhotse numba pydantic PyYAML safetensors silero-vad soundfile
  threadpoolctl torch tqdm websockets)
versions=()
for name in "${locked[@]}"; do
  line=$(grep -iE "^$name==" "$here/requirements.lock") \
    || { echo "requirements.lock has no $name" >&2; exit 1; }
  versions+=("${line%%[ ;]*}")
done
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
  nvidia-pytriton==0.7.0 'tritonclient[grpc]' 'numpy<2' "${versions[@]}"
# This checkout, as it is; it asks for numpy 2, which the server's wheel refuses.
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
  --no-deps --editable "$here"

site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# The backend looks for its stub, one a version of Python, beside itself; a copy of the
# stub would not find its libraries.
server=$site/pytriton/tritonserver
version=$("$environment/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
backend="$environment/triton/backends/python"
mkdir -p "$backend"
ln -sf "$server"/backends/python/* "$server/python_backend_stubs/$version"/* "$backend/"
ln -sfn "$server/bin/tritonserver" "$environment/triton/tritonserver"
