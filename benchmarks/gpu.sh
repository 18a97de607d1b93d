#!/bin/sh
# Everything of issue 18 that wants a GPU, in one command; needs torch with CUDA, and nothing installed or downloaded.
#
#     sh benchmarks/gpu.sh                # results under $OUT, or benchmarks/results
#
# The repository is imported from where it lies. Figures go to OUT as json, everything printed to OUT/gpu.log as well.
set -u
cd "$(dirname "$0")/.." || exit 1
OUT="${OUT:-benchmarks/results}"
PYTHON="${PYTHON:-python3}"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
mkdir -p "$OUT"
failed=0

step() {  # seconds allowed, then the command; one that fails does not stop the others
    allowed=$1
    shift
    echo "== $*"
    timeout "$allowed" "$PYTHON" "$@" || { failed=1; echo "FAILED ($?): $*"; }
}

everything() {
    "$PYTHON" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' || return 1
    "$PYTHON" -c 'import triton; print("triton", triton.__version__)'
    if "$PYTHON" -c 'import pytest' 2> /dev/null; then
        step 60 -m pytest -q -c /dev/null --rootdir . --noconftest --import-mode=importlib -p no:cacheprovider \
            tests/core/test_cuda.py
    fi
    step 150 benchmarks/curvature.py --device cuda --out "$OUT/curvature-cuda.json"
    step 90 benchmarks/posterior.py --device cuda --out "$OUT/posterior-cuda.json"
    step 120 docs/figures/scaling.py --device cuda --out "$OUT/scaling-cuda.json"
    if "$PYTHON" -c 'import bayesvlm.cli, bayesvlm.vlm' 2> /dev/null; then  # what it needs beside torch is installed
        step 500 -m bayesvlm bench --device cuda --out "$OUT/bench-cuda.json" --overwrite
    fi
    [ "$failed" = 0 ] && echo "all ran"
    return "$failed"
}

{ everything 2>&1; echo $? > "$OUT/.status"; } | tee "$OUT/gpu.log"
status=$(cat "$OUT/.status")
rm -f "$OUT/.status"
exit "$status"
