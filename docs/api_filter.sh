#!/bin/sh
# Doxygen's view of a header: api_filter.sh HEADER. The comment at the top of a header describes its main class, so this filter
# also writes it before the class whose name is the file's (grad_scaler.h: GradScaler), unless that class has a comment of its own.
awk -v file="$(basename "$1" .h)" '
function camel(name, parts, n, i, text) {
  n = split(name, parts, "_")
  for (i = 1; i <= n; ++i) text = text toupper(substr(parts[i], 1, 1)) substr(parts[i], 2)
  return text
}
function print_top(first, i, indented, is_code) {
  print "/// " first
  for (i = 1; i <= lines; ++i) {
    is_code = top[i] ~ /^\/\/  /
    if (is_code && !indented) print "/// ~~~~"
    if (!is_code && indented) print "/// ~~~~"
    indented = is_code
    print "/" top[i]
  }
  if (indented) print "/// ~~~~"
}
BEGIN { wanted = camel(file); at_top = 1 }
at_top && /^\/\// { top[++lines] = $0; next }
at_top {
  at_top = 0
  if (lines) { print_top("\\file"); print "" }
}
!done && lines && previous !~ /^\/\/\// && ($0 ~ "^(class|struct) " wanted "( |$)") && $0 !~ /;$/ {
  done = 1
  print_top("")
}
{ print; previous = $0 }
' "$1" | sed -E '/^\/\/\/ ~~~~/,/^\/\/\/ ~~~~/!{/^ *\/\/\//s/<([A-Za-z]+)>/\&lt;\1\&gt;/g;/^ *\/\/\//s/\\([psS])/\\\\\1/g}'
