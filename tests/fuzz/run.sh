#!/usr/bin/env bash
# run.sh PROGRAM [flags of libFuzzer]: runs a fuzz target on a copy of its corpus, with its dictionary.
# Results are stored next to the program: new inputs in NAME/corpus until the next run, failures in
# NAME/failures.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
program="$1"
shift
name="$(basename "$program")"
name="${name#fuzz_}"
work="$(cd "$(dirname "$program")" && pwd)/$name"

rm -rf "$work/corpus"
mkdir -p "$work/corpus" "$work/failures"
if [[ -d "$here/corpus/$name" ]]; then cp "$here/corpus/$name/"* "$work/corpus"; fi
if [[ "$name" == tokenizer_json ]]; then
  cp "$here"/../fixtures/tokenizers/*.json "$work/corpus"
elif [[ "$name" == image ]]; then
  cp "$here"/../fixtures/images/*.{jpg,png} "$work/corpus"
elif [[ "$name" == policy_file ]]; then
  cp "$here"/../../amp/policies/*.json "$work/corpus"
fi
flags=("-artifact_prefix=$work/failures/" -print_final_stats=1)
[[ -f "$here/$name.dict" ]] && flags+=("-dict=$here/$name.dict")
exec "$program" "${flags[@]}" "$@" "$work/corpus"
