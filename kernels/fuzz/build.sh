#!/bin/sh
# Builds the fuzzers of the C++ kernels into a folder, with sanitizers: build.sh FOLDER. `python tests/fuzz` does that,
# and runs them.
#
# decoding  JPEGs through the decoder, mutated by its own mutator: address and undefined-behaviour sanitizers
# covering  the same by libFuzzer, which mutates by coverage, where clang is there (Debian: clang libclang-rt-dev)
# augment   programs of any operations; with the sanitizer of floats that an int can't hold, too
# calls     finish, PNG rows, shuffles, lines, what a cache holds, walks of several files
# threads   several callers of the pool, with the thread sanitizer
# forks     the same and forks, without the thread and address sanitizers: their allocators may be locked in a child
#
# LIBJPEG=/path/libjpeg.a LIBJPEG_INCLUDE=/path takes a libjpeg-turbo built with clang's
# -fsanitize=fuzzer-no-link,address,undefined into `covering`, so that errors inside it are seen too:
#   cmake -DWITH_SIMD=0 -DWITH_TURBOJPEG=0 -DENABLE_SHARED=0 -DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS=... SOURCE
# PYTHON needs numpy and Pillow. `FOLDER/decoding FILE` or `FOLDER/covering FILE` repeats an input.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
rm -f done
"${PYTHON:-python3}" "$here/../../tests/fuzz_seeds.py" seeds

# build C++ C OUTPUT PROGRAM FLAGS... : the kernels and one program; the kernels once for the same flags
build() {
  cxx=$1 cc=$2 output=$3 program=$4
  shift 4
  objects="objects-$(echo "$cxx $*" | cksum | cut -d' ' -f1)"
  if [ ! -d "$objects" ]; then
    mkdir "$objects"
    for source in "$here"/../cpu/*.c; do
      "$cc" -g -O2 -fno-omit-frame-pointer "$@" ${LIBJPEG_INCLUDE:+-I"$LIBJPEG_INCLUDE"} -c "$source" -o "$objects/$(basename "$source").o"
    done
    for source in "$here"/../cpu/*.cpp; do
      "$cxx" -std=c++17 -g -O2 -fno-omit-frame-pointer -ffp-contract=off "$@" ${LIBJPEG_INCLUDE:+-I"$LIBJPEG_INCLUDE"} -c "$source" -o "$objects/$(basename "$source").o"
    done
  fi
  "$cxx" -std=c++17 -g -O2 -fno-omit-frame-pointer -ffp-contract=off "$@" ${LIBJPEG_INCLUDE:+-I"$LIBJPEG_INCLUDE"} "$here/$program" "$objects"/*.o "${LIBJPEG:--ljpeg}" -pthread -o "$output"
}

own_libjpeg=${LIBJPEG:-} own_include=${LIBJPEG_INCLUDE:-}
LIBJPEG="" LIBJPEG_INCLUDE=""
rm -rf objects-*
both="-fsanitize=address,undefined -fno-sanitize-recover=all"
build g++ gcc decoding decoding.cpp -DGP_STANDALONE $both
build g++ gcc calls calls.cpp -DGP_STANDALONE $both
build g++ gcc augment augment.cpp -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
build g++ gcc threads threads.cpp -fsanitize=thread
build g++ gcc forks threads.cpp -fsanitize=undefined -fno-sanitize-recover=all
if command -v clang++ >/dev/null; then
  LIBJPEG=$own_libjpeg LIBJPEG_INCLUDE=$own_include
  build clang++ clang covering decoding.cpp -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -fno-sanitize-coverage=trace-cmp
fi
touch done
