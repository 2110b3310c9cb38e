#!/usr/bin/env bash
# web.sh [--root DIR]: compiles the library, without threads, to WebAssembly and makes build/web/index.html (docs/web.md), a page
# that opens from the disk or from any static server. Needs emscripten from version 3.1.50 on, and the headers of nlohmann-json and
# zlib (Debian 13: emscripten nlohmann-json3-dev zlib1g-dev).
# --root DIR: compiles in a Debian 13 in this folder, for a machine whose emscripten is older. Needs root; to make one:
#   apt-get install debootstrap && debootstrap --variant=minbase trixie DIR
#   chroot DIR sh -c 'apt-get update && apt-get install --no-install-recommends emscripten nlohmann-json3-dev zlib1g-dev make'
set -euo pipefail
shopt -s globstar
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "[web] $1" >&2; exit 1; }

if [[ "${1:-}" == --root ]]; then
  root="$(realpath "${2:?[web] --root needs the folder of a Debian 13}")"
  mkdir -p "$root/halftone"
  if ! mountpoint -q "$root/halftone"; then
    mount --bind "$PWD" "$root/halftone"
    trap 'umount "$root/halftone"' EXIT
  fi
  chroot "$root" /halftone/scripts/web.sh
  exit
fi
((!$#)) || fail "unknown argument: $1. Use none, or --root DIR."

command -v em++ > /dev/null || fail "em++ is missing. Install emscripten, or use --root (the top of scripts/web.sh says how)."
version="$(em++ -dumpversion 2> /dev/null || em++ --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)"
[[ "$(printf '%s\n' 3.1.50 "$version" | sort -V | head -1)" == 3.1.50 ]] ||
  fail "emscripten is $version, whose C++ library lacks std::ranges. Use 3.1.50 or later, or --root (the top of scripts/web.sh says how)."

out=build/web
mkdir -p $out/include/sys_root $out/objects $out/sources
ln -sfn "$PWD" $out/include/halftone
# Only these two libraries of the host are headers that WebAssembly can use.
for header in nlohmann zlib.h zconf.h; do
  found=""
  for folder in /usr/include /usr/include/*-linux-gnu; do [[ ! -e $folder/$header ]] || found=$folder/$header; done
  [[ -n "$found" ]] || fail "the header $header is missing. Install nlohmann-json3-dev and zlib1g-dev."
  ln -sfn "$found" $out/include/sys_root/$header
done

# Writes its argument to a file unless the file has this content, so that make compiles only what changed.
write() { [[ -e "$1" && "$(< "$1")" == "$2" ]] || printf '%s\n' "$2" > "$1"; }

# -fexperimental-library: libc++ has std::jthread, which headers of data/ name, only with this flag.
common="-std=c++20 -fexperimental-library -O2 -DNDEBUG -msimd128 -fwasm-exceptions -ffp-contract=off -fno-math-errno -I$out/include -isystem $out/include/sys_root -isystem backends/one_thread"
rules="" objects=""
# compile NAME FLAGS FILE...: one object of several files, as the CMake build with HALFTONE_UNITY.
compile() {
  local name=$1 flags=$2 text="" file
  shift 2
  for file; do text+="#include <halftone/$file>"$'\n'; done
  write "$out/sources/$name.cpp" "${text%$'\n'}"
  objects+=" $out/objects/$name.o"
  rules+="$out/objects/$name.o: $out/sources/$name.cpp"$'\n'$'\t'"em++ $common $flags -MMD -c \$< -o \$@"$'\n'
}
# in_groups NAME FLAGS SIZE FILE...: objects of up to SIZE files.
in_groups() {
  local name=$1 flags=$2 size=$3 number=0
  shift 3
  while (($#)); do
    compile "${name}_$number" "$flags" "${@:1:$size}"
    shift $(($# < size ? $# : size)); number=$((number + 1))
  done
}
# A page has no files. data/ reads some, with threads; train/ needs its headers only. train/checkpoint.cpp writes some, by calls of
# Linux; the linker leaves out what needs it.
for folder in core autograd distributed nn optim amp train; do
  files=()
  for file in $folder/**/*.cpp; do
    [[ $file == autograd/compiled_* || $file == train/checkpoint.cpp ]] || files+=("$file")
  done
  in_groups $folder "-DHALFTONE_VERSION='\"web\"'" 4 "${files[@]}"
done
in_groups autograd_compiled "" 1 autograd/compiled_*.cpp
in_groups reference -O3 4 backends/reference/*.cpp
in_groups cpu -O3 4 backends/cpu/*.cpp
# These files say what happens without the library that each is for.
in_groups absent "-DHALFTONE_HAVE_ONEDNN=0 -DHALFTONE_HAVE_EIGEN=0 -DHALFTONE_HAVE_MPI=0 -DHALFTONE_HAVE_NCCL=0" 1 \
  backends/cpu/onednn/onednn.cpp backends/linear_algebra.cpp backends/mpi/mpi.cpp backends/cuda/absent.cpp backends/cuda/nccl/nccl.cpp
in_groups registry "" 1 backends/registry.cpp backends/one_thread/team.cpp
# The kernels in vectors of 16 bytes: of the baseline, and those of portable bits (backends/CMakeLists.txt). The tile of products has
# 8 rows and 1 vector: its products in double need registers, and 4 rows of 2 vectors are a tenth slower. It does not change bits.
vectors="-O3 -Wno-psabi -DHALFTONE_VECTOR_BYTES=16 -DHALFTONE_TILE_ROWS=8 -DHALFTONE_TILE_VECTORS=1"
simd=backends/cpu/simd
in_groups baseline "$vectors -DHALFTONE_ISA=baseline -DHALFTONE_ISA_NAME='\"baseline\"'" 4 \
  $simd/{elementwise,gemm,images,quantize,random,rows,short_formats}.cpp
in_groups portable "$vectors -DHALFTONE_PORTABLE -DHALFTONE_FAST_ISA=baseline -DHALFTONE_ISA=portable_baseline -DHALFTONE_ISA_NAME='\"portable_baseline\"'" 4 \
  $simd/{elementwise,gemm,rows}.cpp
in_groups panels "-O3 -DHALFTONE_ISA=panels -DHALFTONE_VECTOR_BYTES=64" 1 $simd/panels.cpp

# The texts of amp/policies/, as cmake/shipped_policies.cmake writes them.
policies="#include <halftone/amp/policy.h>
std::span<const halftone::policy::ShippedPolicy> halftone::policy::shipped_policies() {
  static constexpr ShippedPolicy all[]{"
for file in amp/policies/*.json; do policies+="
{\"$(basename "$file" .json)\", R\"policy($(< "$file"))policy\"},"; done
write $out/sources/policies.inc "$policies
}; return all; }"
compile policies "" build/web/sources/policies.inc
compile binding "-iquote examples/exercises" web/binding.cpp

write $out/rules.mk "all: $out/library.js
$rules
$out/library.js:$objects
	em++ -O2 -msimd128 -fwasm-exceptions -sSINGLE_FILE=1 -sSTACK_SIZE=4MB -sFILESYSTEM=0 -sENVIRONMENT=web,node -sALLOW_MEMORY_GROWTH=1 \\
	  -sMODULARIZE=1 -sEXPORT_NAME=halftone -sEXPORTED_FUNCTIONS=_halftone_call,_halftone_grade,_malloc,_free -sALLOW_TABLE_GROWTH=1 \\
	  -sEXPORTED_RUNTIME_METHODS=ccall,addFunction,removeFunction,wasmMemory \\
	  \$^ -o \$@
-include $out/objects/*.d"
make -s -f $out/rules.mk -j"${JOBS:-$(nproc)}"
cp web/index.html web/page.js $out/
cat $out/index.html $out/page.js $out/library.js | gzip -9 | wc -c | awk '{printf "build/web/index.html: %.2f MB compressed\n", $1 / 1e6}'
