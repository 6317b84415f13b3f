#!/bin/sh
# Fuzzes the C++ kernels: run.sh [INPUTS] [FOLDER], default 20000 inputs each way and a folder that is removed after.
#
# 1. g++ with address and undefined-behaviour sanitizers, the harness's own mutator;
# 2. programs.cpp: programs of any operations for augment, with the same sanitizers and that of floats that an int can't
#    hold;
# 3. threads.cpp: several callers of the pool with the thread sanitizer, and forks
#    without it or the address sanitizer: their allocators may be locked in a child;
# 4. clang with libFuzzer, which mutates by coverage, where clang is there (Debian: clang libclang-rt-dev).
#
# LIBJPEG=/path/libjpeg.a LIBJPEG_INCLUDE=/path takes a libjpeg-turbo built with clang's
# -fsanitize=fuzzer-no-link,address,undefined into 4, so that errors inside it are seen too:
#   cmake -DWITH_SIMD=0 -DWITH_TURBOJPEG=0 -DENABLE_SHARED=0 -DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS=... SOURCE
# SEED=2 takes other random numbers. PYTHON needs numpy and Pillow. A failing input stays in FOLDER as crash-*;
# `FOLDER/own crash-standalone` or `FOLDER/covering crash-...` repeats it.
#
# Run so far, without a finding left: 812000 inputs of 1, 400000 of 2, and 666000 of 4, most with libjpeg-turbo 2.1.5
# built in, on a CPU with AVX2 and without AVX-512; of these 447000 of 1 and 15000 of 4 since images may have two views,
# 432000 of 1 since walk.c is there, 124000 of 1 since windows may reach out of the image, 32000 of 1, on a CPU with AVX-512, since coefficients are decoded in pairs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
inputs=${1:-20000}
folder=${2:-}
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
seed=${SEED:-1}
mkdir -p "$folder"
cd "$folder"
"${PYTHON:-python3}" "$here/../../tests/fuzz_seeds.py" seeds

# build C++ C OUTPUT PROGRAM FLAGS... : the kernels and one program
build() {
  cxx=$1 cc=$2 output=$3 program=$4
  shift 4
  mkdir -p "objects-$output"
  for source in "$here"/../cpu/*.c; do
    "$cc" -g -O2 -fno-omit-frame-pointer "$@" ${LIBJPEG_INCLUDE:+-I"$LIBJPEG_INCLUDE"} -c "$source" -o "objects-$output/$(basename "$source").o"
  done
  for source in "$here"/../cpu/*.cpp "$here/$program"; do
    "$cxx" -std=c++17 -g -O2 -fno-omit-frame-pointer -ffp-contract=off "$@" ${LIBJPEG_INCLUDE:+-I"$LIBJPEG_INCLUDE"} -c "$source" -o "objects-$output/$(basename "$source").o"
  done
  "$cxx" "$@" "objects-$output"/*.o "${LIBJPEG:--ljpeg}" -pthread -o "$output"
}

export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
own_libjpeg=${LIBJPEG:-} own_include=${LIBJPEG_INCLUDE:-}
LIBJPEG="" LIBJPEG_INCLUDE=""

echo "g++, address and undefined-behaviour sanitizers"
build g++ gcc own fuzz.cpp -DGP_STANDALONE -fsanitize=address,undefined -fno-sanitize-recover=all
./own seeds "$inputs" "$seed"

echo "programs of augment"
build g++ gcc programs programs.cpp -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
./programs "$inputs" "$seed"

echo "threads and forks"
build g++ gcc threads threads.cpp -fsanitize=thread
./threads
build g++ gcc forks threads.cpp -fsanitize=undefined -fno-sanitize-recover=all
./forks

if command -v clang++ >/dev/null; then
  echo "clang++, libFuzzer"
  LIBJPEG=$own_libjpeg LIBJPEG_INCLUDE=$own_include
  build clang++ clang covering fuzz.cpp -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    -fno-sanitize-coverage=trace-cmp
  mkdir -p found
  ./covering -runs="$inputs" -seed="$seed" -max_len=8192 -timeout=20 -rss_limit_mb=2048 -entropic=0 -verbosity=0 \
    -print_final_stats=1 found seeds
fi
echo "nothing found"
