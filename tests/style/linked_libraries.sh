#!/usr/bin/env bash
# linked_libraries.sh OBJDUMP PROGRAM: a program links oneDNN, OpenMP, and the libraries of C and C++, and no other. MPI, cuDNN,
# cuBLASLt and NCCL are opened when they are needed.
set -euo pipefail
objdump="$1" program="$2"
needed="$("$objdump" -p "$program" | awk '$1 == "NEEDED" { print $2 }')"
[[ -n "$needed" ]] || { echo "$program: $objdump lists no libraries"; exit 1; }
others="$(grep -vE '^(lib(dnnl|gomp|stdc\+\+|m|gcc_s|c|pthread|dl|rt)|ld-linux.*)\.so' <<<"$needed" || true)"
[[ -z "$others" ]] || { echo "$program also links: $others"; exit 1; }
echo $needed
