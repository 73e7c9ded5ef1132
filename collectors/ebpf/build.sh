#!/bin/sh
# Build the BPF object from its source; needs clang, llvm-strip and libbpf's headers.
# Argument: where to write it (default: beside the source). The one beside it is by clang 14.0.6.
set -eu
here=$(dirname "$0")
out=${1:-$here/flows.bpf.o}
arch=$(uname -m)-linux-gnu
# Version 2 of the instruction set is the newest that every kernel since 5.15 runs on any machine.
clang -O2 -g -target bpf -mcpu=v2 -Wall -Werror -fdebug-compilation-dir=. \
    -I"/usr/include/$arch" -c "$here/flows.bpf.c" -o "$out"
llvm-strip -g "$out"
