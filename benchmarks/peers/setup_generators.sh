#!/bin/sh
# Environments for generators.py, away from the project's own: setup_generators.sh DIR [NAME...]
#
# guidellm, aiperf and inference-perf need different versions of the same packages, so each gets DIR/NAME (names: those
# three). One that cannot be installed is reported at the end and left out; generators.py says so again. No GPU is used:
# guidellm's torch is the one that constraints.txt pins, where pip has it. About 3 GB in all.
# PYTHON=/path/to/python3 chooses the interpreter; inference-perf needs 3.12 or newer (PYTHON312=...).
set -eu
if [ $# -lt 1 ]; then
    echo "usage: setup_generators.sh DIR [guidellm] [aiperf] [inference-perf]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=$1
shift
[ $# -gt 0 ] || set -- guidellm aiperf inference-perf
mkdir -p "$dir"
pin=$(grep -m1 '^torch==' "$here/constraints.txt" || true)

new_enough() { # PYTHON MINOR
    command -v "$1" >/dev/null 2>&1 && "$1" -c "import sys; sys.exit(sys.version_info < (3, $2))" 2>/dev/null
}

find_python() { # MINOR CANDIDATE...
    minor=$1
    shift
    for candidate in "$@" "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python; do
        if new_enough "$candidate" "$minor"; then
            command -v "$candidate"
            return
        fi
    done
}

install() { # NAME PYTHON REQUIREMENT...
    name=$1 python=$2
    shift 2
    if [ -x "$dir/$name/bin/$name" ]; then
        echo "$name: already there"
        return
    fi
    if [ -z "$python" ]; then
        echo "$name: NOT INSTALLED: no Python new enough for it"
        return
    fi
    echo "$name: installing with $("$python" --version)" >&2
    "$python" -m venv --clear "$dir/$name"
    if "$dir/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >"$dir/$name.log" 2>&1; then
        "$dir/$name/bin/python" -m pip list --disable-pip-version-check 2>/dev/null | grep -i "^$name " || true
    else
        rm -rf "${dir:?}/$name"
        echo "$name: NOT INSTALLED: $(grep -m1 '^ERROR' "$dir/$name.log" || tail -n 1 "$dir/$name.log")"
    fi
}

any=$(find_python 11 ${PYTHON:-python3} python3.13 python3.12 python3.11)
newer=$(find_python 12 ${PYTHON312:-python3.13} python3.12 ${PYTHON:-python3})
for name in "$@"; do
    case $name in
    guidellm) install guidellm "$any" ${pin:+"$pin"} guidellm ;;
    aiperf) install aiperf "$any" aiperf ;;
    inference-perf) install inference-perf "$newer" inference-perf ;;
    *) echo "$name: not one of guidellm, aiperf, inference-perf" >&2 && exit 2 ;;
    esac
done
