#!/usr/bin/env bash
# slots.sh ROOT: docs/architecture.md lists every slot that a header declares (core/language.h), with the file that declares it; and no
# header makes a slot by hand.
set -euo pipefail
cd "$1"
failed=0
count=0
while IFS=: read -r file _ text; do
  name=$(sed -E 's/.*= Slot<(const )?(std::shared_ptr<)?([A-Za-z]+).*/\3/' <<<"$text")
  count=$((count + 1))
  grep -qF "| \`$name\` | \`$file\` |" docs/architecture.md || { echo "docs/architecture.md has no row | \`$name\` | \`$file\` |"; failed=1; }
done < <(grep -rnE '^using [A-Za-z]+ = Slot<' --include='*.h' core autograd distributed nn optim data amp train onnx)
((count >= 6)) || { echo "only $count slots were found: is $1 the root?"; exit 1; }
# State that the user's thread sets for the engine is not a slot: whether to record, which module calls.
by_hand=$(grep -rlE '^ *(inline|static inline|static inline constinit) thread_local' --include='*.h' core autograd distributed nn optim data amp train onnx |
          grep -vxF -e core/language.h -e autograd/slots.h || true)
[[ -z "$by_hand" ]] || { echo "use Slot of core/language.h in: $by_hand"; failed=1; }
exit $failed
